#include "request/method.h"

#include <string.h>

const struct method methods[METHOD_COUNT] = {
#define REQUEST(name, since, params, result, doc) { #name, since, params, result, doc },
#include "../../protocol/protocol.def"
#undef REQUEST
};

int method_find(const char *name, size_t size)
{
    for (int i = 0; i < METHOD_COUNT; i++)
        if (strlen(methods[i].name) == size && memcmp(methods[i].name, name, size) == 0)
            return i;
    return -1;
}
