#pragma once

#include "c/opd.h"

// False, and `out` as it was, if the value is no integer or does not fit.
bool map_as_int(const msgpack_object *value, int64_t *out);
