#include "base/mpscan.h"

#include <stdarg.h>
#include <stdio.h>

// How an element with a first byte of 0xc0 to 0xdf goes on.
struct form {
    uint8_t length; // bytes of the length that follow the first byte
    uint8_t fixed;  // further bytes that are always there
    uint8_t nested; // elements for each unit of the length; 0: the length counts bytes
};

// clang-format off
static const struct form forms[32] = {
    [0xc4 - 0xc0] = { 1, 0, 0 }, [0xc5 - 0xc0] = { 2, 0, 0 },  [0xc6 - 0xc0] = { 4, 0, 0 }, // bin
    [0xc7 - 0xc0] = { 1, 1, 0 }, [0xc8 - 0xc0] = { 2, 1, 0 },  [0xc9 - 0xc0] = { 4, 1, 0 }, // ext
    [0xca - 0xc0] = { 0, 4, 0 }, [0xcb - 0xc0] = { 0, 8, 0 }, // float
    [0xcc - 0xc0] = { 0, 1, 0 }, [0xcd - 0xc0] = { 0, 2, 0 }, // uint
    [0xce - 0xc0] = { 0, 4, 0 }, [0xcf - 0xc0] = { 0, 8, 0 },
    [0xd0 - 0xc0] = { 0, 1, 0 }, [0xd1 - 0xc0] = { 0, 2, 0 }, // int
    [0xd2 - 0xc0] = { 0, 4, 0 }, [0xd3 - 0xc0] = { 0, 8, 0 },
    [0xd4 - 0xc0] = { 0, 2, 0 }, [0xd5 - 0xc0] = { 0, 3, 0 }, // fixext
    [0xd6 - 0xc0] = { 0, 5, 0 }, [0xd7 - 0xc0] = { 0, 9, 0 },  [0xd8 - 0xc0] = { 0, 17, 0 },
    [0xd9 - 0xc0] = { 1, 0, 0 }, [0xda - 0xc0] = { 2, 0, 0 },  [0xdb - 0xc0] = { 4, 0, 0 }, // str
    [0xdc - 0xc0] = { 2, 0, 1 }, [0xdd - 0xc0] = { 4, 0, 1 }, // array
    [0xde - 0xc0] = { 2, 0, 2 }, [0xdf - 0xc0] = { 4, 0, 2 }, // map
};
// clang-format on

// One element without what it contains.
struct element {
    uint64_t size;     // bytes
    uint64_t children; // elements that follow and belong to it
    bool container;
};

static bool read_form(struct element *e, const uint8_t *p, size_t size)
{
    const struct form *form = &forms[*p - 0xc0];
    if (size < 1u + form->length)
        return false;
    uint64_t length = mpscan_big_endian(p + 1, form->length);
    e->size = 1u + form->length + form->fixed + (form->nested ? 0 : length);
    e->children = form->nested * length;
    e->container = form->nested != 0;
    return true;
}

// Of numbers, short strings, nil, false and true, whose first byte tells it. 0: of others.
static inline unsigned plain_size(uint8_t byte)
{
    if (byte < 0x80 || byte >= 0xe0 || byte == 0xc0 || byte == 0xc2 || byte == 0xc3)
        return 1;
    if (byte >= 0xa0 && byte < 0xc0)
        return 1u + (byte & 0x1f);
    return byte >= 0xca && byte <= 0xd3 ? 1u + forms[byte - 0xc0].fixed : 0;
}

// False if its head has not come whole.
static inline bool read_element(struct element *e, const uint8_t *p, size_t size)
{
    uint8_t byte = *p;
    *e = (struct element){ .size = plain_size(byte) };
    if (byte >= 0xc0 && byte < 0xe0)
        return read_form(e, p, size);
    if (e->size == 0) {
        e->size = 1;
        e->container = true;
        e->children = (byte & 0x0f) * (byte < 0x90 ? 2u : 1u);
    }
    return true;
}

static enum mpscan_result __attribute__((format(printf, 2, 3)))
refuse(struct mpscan *s, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(s->reason, sizeof s->reason, fmt, args);
    va_end(args);
    return MPSCAN_INVALID;
}

static struct mpscan_limits fill_limits(const struct mpscan_limits *given)
{
    struct mpscan_limits limits = given ? *given : (struct mpscan_limits){ 0 };
    if (limits.message == 0)
        limits.message = MPSCAN_DEFAULT_MESSAGE;
    if (limits.elements == 0)
        limits.elements = MPSCAN_DEFAULT_ELEMENTS;
    if (limits.depth == 0)
        limits.depth = MPSCAN_DEFAULT_DEPTH;
    if (limits.depth > MPSCAN_MAX_DEPTH)
        limits.depth = MPSCAN_MAX_DEPTH;
    return limits;
}

static enum mpscan_result check_element(struct mpscan *s, const struct element *e,
                                        const struct mpscan_limits *limits)
{
    if (e->container && s->depth >= limits->depth)
        return refuse(s, "byte %zu: nested deeper than %u", s->position, limits->depth);
    if (e->children > limits->elements - s->elements)
        return refuse(s, "byte %zu: a message of more than %zu elements", s->position,
                      limits->elements);
    // What is owed counts this element, which is of e->size bytes.
    uint64_t least = s->position + e->size + e->children + (s->owed - 1);
    if (least > limits->message)
        return refuse(s, "byte %zu: a message of at least %llu bytes; at most %zu are taken",
                      s->position, (unsigned long long)least, limits->message);
    return MPSCAN_MORE;
}

// Takes in what is not plain, or too large: its size and children are in *e. MORE: it may go on.
static enum mpscan_result scan_element(struct mpscan *s, const uint8_t *p, size_t size,
                                       const struct mpscan_limits *limits, struct element *e)
{
    if (*p == 0xc1)
        return refuse(s, "byte %zu: 0xc1 is no MessagePack", s->position);
    if (!read_element(e, p, size))
        return MPSCAN_DONE; // as far as it has come
    return check_element(s, e, limits);
}

enum mpscan_result mpscan_scan(struct mpscan *s, const void *bytes, size_t size,
                               const struct mpscan_limits *given)
{
    struct mpscan_limits limits = fill_limits(given);
    if (s->reason[0])
        return MPSCAN_INVALID;
    if (!s->started) {
        s->started = true;
        s->owed = 1;
    }
    const uint8_t *p = bytes;
    size_t position = s->position, owed = s->owed;
    unsigned depth = s->depth;
    while (owed > 0 && position < size) {
        struct element e = { .size = plain_size(p[position]) };
        if (e.size == 0 || position + e.size + (owed - 1) > limits.message) {
            s->position = position;
            s->owed = owed;
            s->depth = depth;
            enum mpscan_result result = scan_element(s, p + position, size - position, &limits, &e);
            if (result != MPSCAN_MORE)
                return result == MPSCAN_DONE ? MPSCAN_MORE : result;
        }
        position += (size_t)e.size;
        owed += (size_t)e.children - 1;
        if (depth > 0)
            s->left[depth - 1]--;
        if (e.children > 0) {
            s->elements += (size_t)e.children;
            s->left[depth++] = e.children;
        }
        while (depth > 0 && s->left[depth - 1] == 0)
            depth--;
    }
    s->position = position;
    s->owed = owed;
    s->depth = depth;
    return owed == 0 && position <= size ? MPSCAN_DONE : MPSCAN_MORE;
}
