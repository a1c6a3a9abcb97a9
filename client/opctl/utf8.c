#include "opctl/utf8.h"

size_t utf8_decode(const char *bytes, size_t size, uint32_t *c)
{
    static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    const unsigned char *p = (const unsigned char *)bytes;
    *c = p[0];
    if (p[0] < 0x80)
        return 1;
    size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || n > size)
        return 0;
    *c = p[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        *c = *c << 6 | (p[i] & 0x3fu);
    }
    if (*c < least[n] || *c > 0x10ffff || (*c >= 0xd800 && *c < 0xe000))
        return 0;
    return n;
}
