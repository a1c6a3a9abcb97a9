// Reads its input as the records of a state, under a header that fits. What is taken is written and
// must be taken again.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "broker.h"
#include "request/parts.h"
#include "device/device.h"
#include "base/hash.h"
#include "base/mem.h"
#include "upgrade/state.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            abort();                                                                               \
    } while (0)

static struct broker *empty_broker(void)
{
    struct options options = { .compilers = 1 };
    return broker_new(&options);
}

// Regions without a descriptor are not written, and with them nothing of their memory.
static bool has_regions(const struct broker *b)
{
    for (int i = 0; i < b->devices.n; i++)
        if (b->devices.at[i]->regions.n > 0)
            return true;
    return false;
}

static void read_again(struct broker *b)
{
    struct state_out out = { 0 };
    struct opd_err err = { 0 };
    state_write(&out, b, NULL);
    struct broker *again = empty_broker();
    CHECK(state_read(again, out.bytes.bytes, out.bytes.size, true, &err));
    broker_discard(again);
    state_out_finish(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf bytes = { 0 };
    struct opd_err err = { 0 };
    uint32_t format[2] = { STATE_FORMAT, 0 };
    uint64_t tail[2] = { size, hash_bytes(data, size, 0) };
    buf_append(&bytes, "opdstate", 8);
    buf_append(&bytes, format, sizeof format);
    buf_append(&bytes, tail, sizeof tail);
    buf_append(&bytes, data, size);
    struct broker *b = empty_broker();
    bool ok = state_read(b, bytes.bytes, bytes.size, true, &err);
    CHECK(ok == (err.code == OPD_E_none));
    if (ok && !has_regions(b))
        read_again(b);
    opd_err_clear(&err);
    broker_discard(b);
    buf_finish(&bytes);
    return 0;
}
