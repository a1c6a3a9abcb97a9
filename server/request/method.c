#include "request/method.h"

#include <stdint.h>
#include <string.h>

const struct method methods[METHOD_COUNT] = {
#define REQUEST(name, since, params, result, doc) { #name, since, params, result, doc },
#include "../../protocol/protocol.def"
#undef REQUEST
};

// Of the names: few are of one length.
static const uint8_t sizes[METHOD_COUNT] = {
#define REQUEST(name, since, params, result, doc) sizeof #name - 1,
#include "../../protocol/protocol.def"
#undef REQUEST
};

int method_find(const char *name, size_t size)
{
    const uint8_t *at = sizes, *end = sizes + METHOD_COUNT;
    while (size <= UINT8_MAX && (at = memchr(at, (int)size, (size_t)(end - at))) != NULL) {
        if (memcmp(methods[at - sizes].name, name, size) == 0)
            return (int)(at - sizes);
        at++;
    }
    return -1;
}
