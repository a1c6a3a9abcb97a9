// opctl ops: every operator in a line; opctl ops NAME: one, in full.

#include <string.h>

#include "command.h"
#include "table.h"

static bool is_true(const msgpack_object *map, const char *key)
{
    const msgpack_object *o = opd_map_get(map, key);
    return o && o->type == MSGPACK_OBJECT_BOOLEAN && o->via.boolean;
}

static struct text yes_or_no(const msgpack_object *map, const char *key)
{
    return is_true(map, key) ? (struct text){ "yes" } : (struct text){ "no" };
}

static struct text first_sentence(const msgpack_object *map, const char *key)
{
    struct text t = text_field(map, key);
    char *end = strstr(t.s, ". ");
    if (end)
        end[1] = '\0';
    t.s[strcspn(t.s, "\n")] = '\0';
    return t;
}

// What an attribute is: "int[2]", "float".
static struct text read_type(const msgpack_object *attr, const char *key)
{
    struct text t = text_field(attr, key);
    int64_t count;
    if (opd_map_int(attr, "list", &count) && count > 0) {
        size_t n = strlen(t.s);
        snprintf(t.s + n, sizeof t.s - n, "[%lld]", (long long)count);
    }
    return t;
}

static struct text read_default(const msgpack_object *attr, const char *key)
{
    if (is_true(attr, "required"))
        return (struct text){ "required" };
    return text_field(attr, key);
}

static const struct column operators[] = {
    { .title = "OPERATOR", .key = "name" },
    { .title = "VERSION", .key = "version", .right = true },
    { .title = "BACKWARD", .key = "has_backward", .read = yes_or_no },
    { .title = "DTYPES", .key = "dtypes" },
    { .title = "WHAT IT DOES", .key = "doc", .read = first_sentence },
};

static const struct column inputs[] = {
    { .title = "INPUT", .key = "name" },
    { .title = "OPTIONAL", .key = "optional", .read = yes_or_no },
    { .title = "IN PLACE", .key = "in_place", .read = yes_or_no },
    { .title = "GRADIENT", .key = "differentiable", .read = yes_or_no },
    { .title = "DTYPES", .key = "dtypes" },
};

static const struct column attributes[] = {
    { .title = "ATTRIBUTE", .key = "name" },
    { .title = "TYPE", .key = "type", .read = read_type },
    { .title = "DEFAULT", .key = "default", .read = read_default },
    { .title = "WORDS", .key = "words" },
};

static const struct column outputs[] = {
    { .title = "OUTPUT", .key = "name" },
    { .title = "DTYPES", .key = "dtypes" },
};

static void show_list(FILE *out, const msgpack_object *list)
{
    if (list->type == MSGPACK_OBJECT_ARRAY && list->via.array.size == 0)
        fputs("No operators: name a folder of .cu files with opd --kernels.\n", out);
    table_print(out, operators, sizeof operators / sizeof *operators, list);
}

// A blank line and a table, if there is anything to show.
static void show_part(FILE *out, const struct column *columns, size_t count,
                      const msgpack_object *rows)
{
    if (!rows || rows->type != MSGPACK_OBJECT_ARRAY || rows->via.array.size == 0)
        return;
    putc('\n', out);
    table_print(out, columns, count, rows);
}

static void show_one(FILE *out, const msgpack_object *op)
{
    text_print(out, text_field(op, "schema").s, false);
    fputs("\n\n", out);
    text_print(out, text_field(op, "doc").s, true);
    fputs("\n\n", out);
    fprintf(out, "version     %s (%s)\nbackward    %s\nfile        ", text_field(op, "version").s,
            text_field(op, "hash").s, yes_or_no(op, "has_backward").s);
    text_print(out, text_field(op, "file").s, false);
    putc('\n', out);
    show_part(out, inputs, sizeof inputs / sizeof *inputs, opd_map_get(op, "inputs"));
    show_part(out, attributes, sizeof attributes / sizeof *attributes, opd_map_get(op, "attrs"));
    show_part(out, outputs, sizeof outputs / sizeof *outputs, opd_map_get(op, "outputs"));
}

int cmd_ops(struct session *session, char **args)
{
    if (args[0])
        return session_ask(session, "op_info", args[0], show_one);
    return session_ask(session, "op_list", NULL, show_list);
}
