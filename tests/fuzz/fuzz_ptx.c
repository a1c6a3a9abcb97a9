// Reads its input as the PTX of the kernel "k", and makes its checked build: that is bounded, its
// braces are those of the input, and it is the same each time.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "compiler/ptx_check.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            abort();                                                                               \
    } while (0)

enum { MOST = 1 << 12 }; // bytes that are made of one that came, at the most

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint32_t slots[] = { 0, 8, 24 };
    struct ptx_check_input in = { (const char *)data, size, "k", slots, 3 };
    struct buf out[2] = { 0 }, unchecked[2] = { 0 };
    for (int i = 0; i < 2; i++) {
        struct opd_err err = { 0 };
        bool ok = ptx_check(&in, &out[i], &unchecked[i], &err);
        CHECK(ok ? err.code == OPD_E_none : err.code == OPD_E_internal && err.msg[0]);
        CHECK(out[i].size <= (size + 16) * MOST && unchecked[i].size <= (size + 16) * MOST);
        opd_err_clear(&err);
    }
    CHECK(out[0].size == out[1].size);
    CHECK(out[0].size == 0 || memcmp(out[0].bytes, out[1].bytes, out[0].size) == 0);
    for (int i = 0; i < 2; i++) {
        buf_finish(&out[i]);
        buf_finish(&unchecked[i]);
    }
    return 0;
}
