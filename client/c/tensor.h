#pragma once

#include "c/opd.h"

// Reads the map that describes a tensor. `tensor` may be NULL: then it is checked only.
bool tensor_read_info(struct opd_tensor *tensor, const msgpack_object *info, struct opd_error *err);
