// Reads its input as a fault that was kept; of what is taken its request is planned.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "op/bundle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct opd_err err = { 0 };
    struct bundle b;
    struct buf file = { 0 };
    buf_printf(&file, "opd fault 1 %012zu", size + 24); // so that changes of the length get further
    buf_append(&file, data, size);
    bool ok = bundle_read(&b, file.bytes, file.size, &err);
    if (ok != (err.code == OPD_E_none))
        abort();
    struct op *op = ok ? op_parse(b.file, b.source, b.source_size, &err) : NULL;
    if (op && bundle_read_request(&b, op, &err))
        plan_free(plan_build(b.request, &err));
    op_unref(op);
    bundle_finish(&b);
    buf_finish(&file);
    opd_err_clear(&err);
    return 0;
}
