// opctl tensors: what the daemon holds, and who holds it.

#include <string.h>

#include "opctl/command.h"
#include "opctl/table.h"

// "2x3".
static struct text read_shape(const msgpack_object *tensor, const char *key)
{
    const msgpack_object *shape = opd_map_get(tensor, key);
    if (shape && shape->type == MSGPACK_OBJECT_ARRAY && shape->via.array.size == 0)
        return (struct text){ "scalar" };
    struct text t = text_field(tensor, key);
    for (char *gap = t.s; (gap = strchr(gap, ' '));)
        *gap = 'x';
    return t;
}

static const struct column tensors[] = {
    { .title = "NAME", .key = "name", .least = 24 },
    { .title = "DTYPE", .key = "dtype", .read = text_field_dtypes },
    { .title = "SHAPE", .key = "shape", .read = read_shape, .least = 8 },
    { .title = "SIZE", .key = "bytes", .read = text_field_bytes, .right = true },
    { .title = "DEVICE", .key = "device", .drop = 2 },
    { .title = "OWNER", .key = "owner", .least = 8, .drop = 3 },
    { .title = "IDS", .key = "ids", .right = true, .drop = 1 },
    { .title = "SUSPECT", .key = "suspect", .least = 10, .drop = 4 },
};

static void show_tensors(FILE *out, const msgpack_object *list)
{
    if (list->type == MSGPACK_OBJECT_ARRAY && list->via.array.size == 0)
        fputs("No named tensors.\n", out);
    table_print(out, tensors, sizeof tensors / sizeof *tensors, list);
}

int cmd_tensors(struct session *session, const struct args *args)
{
    (void)args;
    return session_ask(session, "tensor_list", NULL, show_tensors);
}
