#include "executor/backend.h"

#include <stdlib.h>
#include <string.h>

const struct backend_ops *backend_find(const char *device, int *out_index)
{
    *out_index = 0;
    if (strcmp(device, "cpu") == 0)
        return &backend_cpu;
    if (strcmp(device, "cuda") == 0)
        return &backend_cuda;
    if (strncmp(device, "cuda:", 5) != 0)
        return NULL;
    const char *digits = device + 5;
    size_t length = strspn(digits, "0123456789");
    if (length == 0 || length > 4 || digits[length])
        return NULL;
    *out_index = atoi(digits);
    return &backend_cuda;
}
