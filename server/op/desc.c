#include <inttypes.h>
#include <stdio.h>

#include "op/rules.h"

void tensor_desc_format_shape(const int64_t *shape, int rank, char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < rank && i < OP_MAX_RANK && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%" PRId64, i ? ", " : "", shape[i]);
    if (n < size)
        snprintf(out + n, size - n, "]");
}

int64_t tensor_desc_numel(const struct tensor_desc *d)
{
    int64_t numel = 1;
    for (int i = 0; i < d->rank; i++)
        numel *= d->shape[i];
    return numel;
}

uint64_t tensor_desc_size(const struct tensor_desc *d)
{
    return (uint64_t)tensor_desc_numel(d) * dtype_size(d->dtype);
}

// What is wrong with a dimension of a shape. Always false.
static bool refuse_shape(const struct tensor_desc *d, int dim, struct opd_err *err)
{
    char text[256];
    tensor_desc_format_shape(d->shape, d->rank, text, sizeof text);
    if (d->shape[dim] < 0)
        return op_fail(err, "shape %s: %" PRId64 " in dimension %d is negative", text,
                       d->shape[dim], dim);
    return op_fail(err, "shape %s: %s elements take 2^48 bytes or more", text,
                   dtype_name(d->dtype));
}

bool tensor_desc_check(const struct tensor_desc *d, struct opd_err *err)
{
    if (d->rank < 0 || d->rank > OP_MAX_RANK)
        return op_fail(err, "rank %d, expected at most %d", d->rank, OP_MAX_RANK);
    if ((int)d->dtype <= OPD_DTYPE_NONE || (int)d->dtype >= OPD_DTYPE_COUNT)
        return op_fail(err, "dtype %d, which there is not", (int)d->dtype);
    // Zeros are left out, so that strides and parts of an empty tensor are bounded as well.
    int64_t bytes = (int64_t)dtype_size(d->dtype);
    for (int i = 0; i < d->rank; i++)
        if (d->shape[i] < 0 ||
            (d->shape[i] > 0 &&
             (__builtin_mul_overflow(bytes, d->shape[i], &bytes) || bytes >= (int64_t)1 << 48)))
            return refuse_shape(d, i, err);
    return true;
}

void tensor_desc_format(const struct tensor_desc *d, char *out, size_t size)
{
    char text[256];
    if (d->dtype == OPD_DTYPE_NONE) {
        snprintf(out, size, "None");
        return;
    }
    tensor_desc_format_shape(d->shape, d->rank, text, sizeof text);
    snprintf(out, size, "%s %s", dtype_name(d->dtype), text);
}
