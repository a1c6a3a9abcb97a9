#pragma once

// Where a library of CUDA is looked for: $CUDA_HOME, $CUDA_PATH, /usr/local/cuda*, the dynamic
// linker's folders, and Python's wheels (base/python_sites.h).

struct cuda_library {
    const char *const *names;  // of the file, the best first; NULL ends them
    const char *const *wheels; // folders below site-packages, "/nvidia/cu13/lib"; NULL ends them
    const char *named;         // NULL or "": look; else the library itself or its folder, and
                               // nothing else is tried
    void (*before)(const char *folder); // NULL, or called before a library of that folder is loaded
};

void *cuda_library_open(const struct cuda_library *wanted); // by dlopen; NULL: not found
