#pragma once

// A kernel's access outside of its tensors, in words: the same for every backend.

#include "executor/backend.h"

// A launch as a message speaks of it.
struct access_scene {
    const struct backend_param *params;
    int n_params;
    const struct backend_tensor *tensors; // with the addresses that the kernel saw
    int n_tensors;
};

// The tensor that the kernel most likely meant: that which is nearest, within so many bytes; NULL:
// none.
const struct backend_tensor *access_nearest(const struct access_scene *scene, device_addr addr,
                                            uint64_t within);

// "'x'", "a tensor in 'xs'", for the tensor at this place among the arguments.
void access_name(const struct access_scene *scene, uint32_t arg_offset, char *out, size_t size);

// The element that an address is in, before 0 or behind the last, too.
long long access_element(const struct backend_tensor *t, device_addr addr);

// "out-of-bounds read of 'x': element 1000 of 1000 (float32)"
void access_describe(const struct access_scene *scene, const char *verb, device_addr addr,
                     const struct backend_tensor *t, char *out, size_t size);

// "read through a null pointer: 'bias' is null here (absent, empty or not wanted): test it first"
void access_describe_null(const struct access_scene *scene, const char *verb, char *out,
                          size_t size);
