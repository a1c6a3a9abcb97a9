#pragma once

// The element types of tensors, from dtype.def.

#include <stdbool.h>
#include <stddef.h>

enum opd_dtype {
    OPD_DTYPE_NONE = 0,
#define DTYPE(name, number, size, type, acc) OPD_DTYPE_##name = number,
#include "base/dtype.def"
#undef DTYPE
};

enum { OPD_DTYPE_COUNT = 11 }; // one past the last number

const char *dtype_name(enum opd_dtype dtype); // "float32"; "none" for what is no dtype
size_t dtype_size(enum opd_dtype dtype);      // bytes of one element
const char *dtype_type(enum opd_dtype dtype); // its type in a kernel: "opd::half"
const char *dtype_acc(enum opd_dtype dtype);  // the type it accumulates in: "float"
bool dtype_is_float(enum opd_dtype dtype);
enum opd_dtype dtype_parse(const char *name);       // OPD_DTYPE_NONE if there is none of that name
enum opd_dtype dtype_from_number(long long number); // the same, by number
