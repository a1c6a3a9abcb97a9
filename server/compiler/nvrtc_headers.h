#pragma once

// NVIDIA's own headers, for #include <...>: all from one place, the first of
//
//   include/ of the toolkit that NVRTC is in, if it is whole
//   those that NVRTC (from 13.3 on) has packed in itself; unpacked when a file first needs one
//   include/ beside NVRTC, or of its companion wheels; $CUDA_HOME, $CUDA_PATH, /usr/local/cuda

struct nvrtc;

// Fills in `include`. `library` is the one that dlopen() gave.
void nvrtc_headers_find(struct nvrtc *rtc, void *library);

// Where they are, and what tells these from others of the same name; "" if there are none. Part of
// the compiler's identity. Static storage.
const char *nvrtc_headers_identity(void);

// Before a file is compiled that needs them: unpacks them into the cache, or where that cannot be
// written, into $TMPDIR. Then `include` says where they are.
void nvrtc_headers_unpack(const char *cache);
