#include "base/dtype.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
    const char *type;
    const char *acc;
} dtypes[OPD_DTYPE_COUNT] = {
    [OPD_DTYPE_NONE] = { "none", 0, "void", "void" },
#define DTYPE(name, number, size, type, acc) [number] = { #name, size, type, acc },
#include "base/dtype.def"
#undef DTYPE
};

const char *dtype_name(enum opd_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t dtype_size(enum opd_dtype dtype)
{
    return dtypes[dtype].size;
}

const char *dtype_type(enum opd_dtype dtype)
{
    return dtypes[dtype].type;
}

const char *dtype_acc(enum opd_dtype dtype)
{
    return dtypes[dtype].acc;
}

bool dtype_is_float(enum opd_dtype dtype)
{
    return dtype >= OPD_DTYPE_float16 && dtype <= OPD_DTYPE_float64;
}

enum opd_dtype dtype_parse(const char *name)
{
    for (int i = 1; i < OPD_DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return (enum opd_dtype)i;
    return OPD_DTYPE_NONE;
}

enum opd_dtype dtype_from_number(long long number)
{
    return number > 0 && number < OPD_DTYPE_COUNT ? (enum opd_dtype)number : OPD_DTYPE_NONE;
}
