// Reads its input as an exported plan; what is taken is used as a client would use it.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "unit/exported_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct opd_err err = { 0 };
    struct exported x;
    size_t room = (size + 63) / 64 * 64;
    uint8_t *bytes = aligned_alloc(64, room ? room : 64), *end = bytes + size;
    memcpy(bytes, data, size);
    if (size >= sizeof(struct exported_header)) { // so that changes of the length get further
        struct exported_header *h = (struct exported_header *)(void *)bytes;
        memcpy(h->magic, "opdplan", 8);
        h->layout = EXPORTED_LAYOUT;
        h->size = size;
    }
    bool ok = exported_read(&x, bytes, (size_t)(end - bytes), &err);
    if (ok != (err.code == OPD_E_none))
        abort();
    if (ok)
        exported_walk(&x);
    opd_err_clear(&err);
    free(bytes);
    return 0;
}
