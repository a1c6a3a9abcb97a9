#pragma once

// What a kernel takes of the GPU, from ptxas's remarks (--ptxas-options=-v) and from its image.

#include <stddef.h>

// "registers=40 spill_stores=0 spill_loads=0 shared=1024 stack=0 constant=400": bytes, but for the
// registers. NULL where the remarks do not tell. The caller frees it.
char *rtc_describe(const char *log, const char *symbol, const void *image, size_t size);
