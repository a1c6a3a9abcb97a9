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
    int64_t numel = tensor_desc_numel(d), last = 0;
    for (int i = 0; d->strided && i < d->rank; i++)
        last += (d->shape[i] - 1) * d->strides[i];
    return (uint64_t)(d->strided && numel > 0 ? last + 1 : numel) * dtype_size(d->dtype);
}

int64_t tensor_desc_stride(const struct tensor_desc *d, int dim)
{
    int64_t stride = 1;
    for (int i = d->rank - 1; i > dim; i--)
        stride *= d->shape[i] > 0 ? d->shape[i] : 1;
    return d->strided ? d->strides[dim] : stride;
}

uint64_t tensor_desc_offset(const struct tensor_desc *d, uint64_t i)
{
    uint64_t offset = 0;
    for (int k = d->rank; d->strided && k-- > 0; i /= (uint64_t)d->shape[k])
        offset += i % (uint64_t)d->shape[k] * (uint64_t)d->strides[k];
    return d->strided ? offset : i;
}

void tensor_desc_simplify(struct tensor_desc *d)
{
    struct tensor_desc dense = *d;
    dense.strided = false;
    bool same = true;
    for (int i = 0; i < d->rank; i++)
        same = same && (d->shape[i] == 1 || d->strides[i] == tensor_desc_stride(&dense, i));
    d->strided = d->strided && !same && tensor_desc_numel(d) > 0;
}

// Sure where each dimension, from the smallest stride up, steps over all that those before it span.
bool tensor_desc_overlaps(const struct tensor_desc *d)
{
    bool done[OP_MAX_RANK] = { false };
    int64_t span = 1; // elements
    for (int n = 0; d->strided && n < d->rank; n++) {
        int least = -1;
        for (int i = 0; i < d->rank; i++)
            if (!done[i] && (least < 0 || d->strides[i] < d->strides[least]))
                least = i;
        done[least] = true;
        if (d->shape[least] > 1 && d->strides[least] < span)
            return true;
        span += (d->shape[least] - 1) * d->strides[least];
    }
    return false;
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

static bool check_strides(const struct tensor_desc *d, struct opd_err *err)
{
    char text[256];
    int64_t bytes = (int64_t)dtype_size(d->dtype), dim;
    bool empty = tensor_desc_numel(d) == 0;
    for (int i = 0; i < d->rank; i++) {
        tensor_desc_format_shape(d->strides, d->rank, text, sizeof text);
        if (d->strides[i] < 0)
            return op_fail(err, "strides %s: %" PRId64 " in dimension %d is negative", text,
                           d->strides[i], i);
        if (!empty && (__builtin_mul_overflow(d->shape[i] - 1, d->strides[i], &dim) ||
                       __builtin_mul_overflow(dim, (int64_t)dtype_size(d->dtype), &dim) ||
                       __builtin_add_overflow(bytes, dim, &bytes) || bytes >= (int64_t)1 << 48))
            return op_fail(err, "strides %s: the elements span 2^48 bytes or more", text);
    }
    return true;
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
    return !d->strided || check_strides(d, err);
}

void tensor_desc_format(const struct tensor_desc *d, char *out, size_t size)
{
    char text[256], strides[256];
    if (d->dtype == OPD_DTYPE_NONE) {
        snprintf(out, size, "None");
        return;
    }
    tensor_desc_format_shape(d->shape, d->rank, text, sizeof text);
    tensor_desc_format_shape(d->strides, d->rank, strides, sizeof strides);
    snprintf(out, size, "%s %s%s%s", dtype_name(d->dtype), text, d->strided ? " with strides " : "",
             d->strided ? strides : "");
}
