// opctl ops: every operator in a line; opctl ops NAME: one, in full.

#include <stdlib.h>
#include <string.h>

#include "opctl/command.h"
#include "opctl/table.h"

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
    { .title = "OPERATOR", .key = "name", .least = 16 },
    { .title = "VERSION", .key = "version", .right = true, .drop = 1 },
    { .title = "BACKWARD", .key = "has_backward", .read = yes_or_no, .drop = 2 },
    { .title = "DTYPES", .key = "dtypes", .read = text_field_dtypes, .least = 16, .drop = 3 },
    { .title = "WHAT IT DOES", .key = "doc", .read = first_sentence, .least = 20, .drop = 4 },
};

static const struct column inputs[] = {
    { .title = "INPUT", .key = "name", .least = 8 },
    { .title = "OPTIONAL", .key = "optional", .read = yes_or_no, .drop = 2 },
    { .title = "IN PLACE", .key = "in_place", .read = yes_or_no, .drop = 1 },
    { .title = "GRADIENT", .key = "differentiable", .read = yes_or_no, .drop = 3 },
    { .title = "DTYPES", .key = "dtypes", .read = text_field_dtypes, .least = 8 },
};

static const struct column attributes[] = {
    { .title = "ATTRIBUTE", .key = "name", .least = 8 },
    { .title = "TYPE", .key = "type", .read = read_type },
    { .title = "DEFAULT", .key = "default", .read = read_default },
    { .title = "WORDS", .key = "words", .least = 8 },
};

// "serving", "serving, pinned".
static struct text read_state(const msgpack_object *version, const char *key)
{
    struct text t = text_field(version, key);
    size_t n = strlen(t.s);
    if (is_true(version, "pinned"))
        snprintf(t.s + n, sizeof t.s - n, ", pinned");
    return t;
}

static const struct column versions[] = {
    { .title = "VERSION", .key = "version", .right = true },
    { .title = "TIME", .key = "time", .read = text_field_time },
    { .title = "HASH", .key = "hash", .drop = 1 },
    { .title = "STATE", .key = "state", .read = read_state, .state = true },
    { .title = "MESSAGE", .key = "message", .read = text_field_or_dash, .least = 16, .drop = 2 },
};

static const struct column outputs[] = {
    { .title = "OUTPUT", .key = "name", .least = 8 },
    { .title = "DTYPES", .key = "dtypes", .read = text_field_dtypes, .least = 8 },
};

static const struct column owners[] = {
    { .title = "LOADED BY", .key = "client", .read = text_field_or_dash, .least = 12 },
    { .title = "PID", .key = "pid", .right = true },
    { .title = "OPERATORS", .key = "loaded", .least = 16 },
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

static void show_shadowed(FILE *out, const msgpack_object *files)
{
    for (uint32_t i = 0; files && files->type == MSGPACK_OBJECT_ARRAY && i < files->via.array.size;
         i++) {
        const msgpack_object *file = &files->via.array.ptr[i];
        if (file->type != MSGPACK_OBJECT_STR)
            continue;
        fputs("not served  ", out);
        text_print_bytes(out, file->via.str.ptr, file->via.str.size, false);
        fputs(", which loses to this file\n", out);
    }
}

static void show_one(FILE *out, const msgpack_object *op)
{
    struct text schema = text_field(op, "schema"), doc = text_field(op, "doc");
    term_style(out, STYLE_HEAD);
    text_wrap(out, schema.s, 0);
    term_style(out, STYLE_PLAIN);
    fputs("\n\n", out);
    if (doc.s[0]) {
        text_wrap(out, doc.s, 0);
        fputs("\n\n", out);
    }
    fprintf(out, "version     %s (%s)\nbackward    %s\nfile        ", text_field(op, "version").s,
            text_field(op, "hash").s, yes_or_no(op, "has_backward").s);
    text_print(out, text_field(op, "file").s, false);
    putc('\n', out);
    show_shadowed(out, opd_map_get(op, "shadowed"));
    show_part(out, inputs, sizeof inputs / sizeof *inputs, opd_map_get(op, "inputs"));
    show_part(out, attributes, sizeof attributes / sizeof *attributes, opd_map_get(op, "attrs"));
    show_part(out, outputs, sizeof outputs / sizeof *outputs, opd_map_get(op, "outputs"));
    show_part(out, versions, sizeof versions / sizeof *versions, opd_map_get(op, "versions"));
    const msgpack_object *source = opd_map_get(op, "source");
    bool derived = strchr(text_field(op, "name").s, '.') != NULL; // which no file shows
    if (derived && source && source->type == MSGPACK_OBJECT_STR) {
        putc('\n', out);
        text_print_bytes(out, source->via.str.ptr, source->via.str.size, true);
    }
}

// Who has loaded operators, and which: those that are private to others are in no list of ours.
static void show_owners(FILE *out, const msgpack_object *status)
{
    const msgpack_object *list = opd_map_get(status, "clients");
    size_t n = list && list->type == MSGPACK_OBJECT_ARRAY ? list->via.array.size : 0, n_rows = 0;
    const msgpack_object **rows = calloc(n + 1, sizeof *rows);
    for (size_t i = 0; rows && i < n; i++)
        if (strcmp(text_field_or_dash(&list->via.array.ptr[i], "loaded").s, "-") != 0)
            rows[n_rows++] = &list->via.array.ptr[i];
    if (n_rows > 0) {
        putc('\n', out);
        table_show(out, &(struct table){ .columns = owners,
                                         .n_columns = sizeof owners / sizeof *owners,
                                         .rows = rows,
                                         .n_rows = n_rows,
                                         .row_size = sizeof *rows,
                                         .by_map = true,
                                         .width = term_columns() });
    }
    free(rows);
}

int cmd_ops(struct session *session, const struct args *args)
{
    bool ptx = args->options[OPTION_PTX], sass = args->options[OPTION_SASS];
    bool choice = args->options[OPTION_DTYPE] || args->options[OPTION_TARGET];
    struct pack params;
    if (ptx && sass)
        return session_refuse("--ptx or --sass, not both");
    if ((ptx || sass) && !args->words[1])
        return session_refuse("of which operator? opctl ops NAME --%s", sass ? "sass" : "ptx");
    if (choice && !ptx && !sass)
        return session_refuse("--dtype and --target go with --ptx or --sass");
    if (ptx || sass)
        return ops_show_code(session, args);
    if (!args->words[1]) {
        int code = session_ask(session, "op_list", NULL, show_list);
        return code || session->json ? code : session_ask(session, "status", NULL, show_owners);
    }
    pack_init(&params, 1);
    pack_str(&params, args->words[1]);
    return session_ask(session, "op_info", &params, show_one);
}
