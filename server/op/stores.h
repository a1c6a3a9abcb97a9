#pragma once

// What the text of a kernel tells of what it does to a tensor: whether it may read what was there
// before it has written it.

#include <stdbool.h>
#include <stddef.h>

// `body`: a kernel's, without comments and strings; `file`: the whole file as it stands. True: the
// parameter `name` only ever stands where it is stored to, as in `y[i] = v` or
// `opd::store(y + i, v)`, or is asked whether it is null. False: it may be read, or goes where the
// text does not show it, into a function, another pointer or a macro.
bool stores_only(const char *body, size_t size, const char *name, const char *file,
                 size_t file_size);

// Whether the parameter is asked somewhere whether it is null, or may be where that is not to be
// seen: it stands nowhere, or elsewhere than as y[i], y + i, *y, as the first argument of an atomic
// function, cast as reinterpret_cast<float4 *>(y)[i], or as `T *p = y;` or f(y) where the same is
// true of p, and of f's parameter in `code`, the file without comments and strings.
bool stores_asks(const char *body, size_t size, const char *name, const char *code,
                 size_t code_size);

// The same as stores_only(); whether it stands nowhere.
bool stores_nothing(const char *body, size_t size, const char *name, const char *file,
                    size_t file_size);
