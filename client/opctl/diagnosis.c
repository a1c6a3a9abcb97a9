#include "opctl/diagnosis.h"

#include <string.h>

#include "c/opd.h"

#include "opctl/text.h"

// Empty where there is none.
static msgpack_object_str get_text(const msgpack_object *map, const char *key)
{
    const msgpack_object *o = opd_map_get(map, key);
    return o && o->type == MSGPACK_OBJECT_STR ? o->via.str : (msgpack_object_str){ 0, "" };
}

static bool is_equal(msgpack_object_str a, msgpack_object_str b)
{
    return a.size == b.size && memcmp(a.ptr, b.ptr, a.size) == 0;
}

static void print_line(FILE *out, msgpack_object_str text)
{
    if (text.size == 0)
        return;
    text_print_bytes(out, text.ptr, text.size, true);
    if (text.ptr[text.size - 1] != '\n')
        putc('\n', out);
}

bool diagnosis_has_message(const msgpack_object *map)
{
    msgpack_object_str message = get_text(map, "message"), log = get_text(map, "log");
    return message.size > 0 && !memmem(log.ptr, log.size, message.ptr, message.size);
}

void diagnosis_print_log(FILE *out, const msgpack_object *map)
{
    print_line(out, get_text(map, "log"));
}

void diagnosis_print(FILE *out, const msgpack_object *map)
{
    if (diagnosis_has_message(map))
        print_line(out, get_text(map, "message"));
    diagnosis_print_log(out, map);
}

static bool has_equal(const msgpack_object *maps, uint32_t count, const msgpack_object *map)
{
    for (uint32_t i = 0; i < count; i++)
        if (is_equal(get_text(&maps[i], "message"), get_text(map, "message")) &&
            is_equal(get_text(&maps[i], "log"), get_text(map, "log")))
            return true;
    return false;
}

void diagnosis_print_all(FILE *out, const msgpack_object *list)
{
    if (!list || list->type != MSGPACK_OBJECT_ARRAY)
        return;
    const msgpack_object *maps = list->via.array.ptr;
    for (uint32_t i = 0; i < list->via.array.size; i++)
        if (!has_equal(maps, i, &maps[i]))
            diagnosis_print(out, &maps[i]);
}
