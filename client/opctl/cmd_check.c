// opctl check: does a file compile, and what do its kernels take. Nothing is served.

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "opctl/command.h"
#include "opctl/diagnosis.h"
#include "opctl/table.h"

// "24 B (8 stored, 16 loaded)", of a thread.
static struct text read_spills(const msgpack_object *kernel, const char *key)
{
    int64_t stores, loads = 0;
    if (!opd_map_int(kernel, key, &stores))
        return (struct text){ "-" };
    opd_map_int(kernel, "spill_loads", &loads);
    struct text t = { "0 B" };
    if (stores > 0 || loads > 0)
        snprintf(t.s, sizeof t.s, "%lld B (%lld stored, %lld loaded)", (long long)(stores + loads),
                 (long long)stores, (long long)loads);
    return t;
}

static const struct column kernels[] = {
    { .title = "KERNEL", .key = "kernel", .least = 16 },
    { .title = "DTYPE", .key = "dtype", .read = text_field_dtypes },
    { .title = "TARGET", .key = "target" },
    { .title = "REGISTERS", .key = "registers", .right = true },
    { .title = "SPILLS", .key = "spill_stores", .read = read_spills, .right = true },
    { .title = "SHARED", .key = "shared", .read = text_field_bytes, .right = true, .drop = 2 },
    { .title = "STACK", .key = "stack", .read = text_field_bytes, .right = true, .drop = 1 },
};

enum { ALL_COLUMNS = sizeof kernels / sizeof *kernels, COLUMNS_OF_CPU = 3 };

// The CPU's compiler tells nothing of what a kernel takes.
static void show_kernels(FILE *out, const msgpack_object *result)
{
    const msgpack_object *rows = opd_map_get(result, "kernels");
    bool measured = false;
    for (uint32_t i = 0; rows && rows->type == MSGPACK_OBJECT_ARRAY && i < rows->via.array.size;
         i++)
        measured |= opd_map_get(&rows->via.array.ptr[i], "registers") != NULL;
    if (rows)
        table_print(out, kernels, measured ? ALL_COLUMNS : COLUMNS_OF_CPU, rows);
}

static bool is_good(const msgpack_object *result)
{
    const msgpack_object *ok = opd_map_get(result, "ok");
    return ok && ok->type == MSGPACK_OBJECT_BOOLEAN && ok->via.boolean;
}

// The whole file; the caller frees it. NULL and errno.
static char *read_file(const char *path, size_t *size)
{
    char *text = NULL, piece[4096];
    FILE *in = fopen(path, "re"), *out = in ? open_memstream(&text, size) : NULL;
    bool good = out != NULL;
    for (size_t n; good && (n = fread(piece, 1, sizeof piece, in)) > 0;)
        good = fwrite(piece, 1, n, out) == n;
    good = good && !ferror(in);
    int why = errno;
    if (out)
        fclose(out);
    if (in)
        fclose(in);
    if (good)
        return text;
    free(text);
    errno = why;
    return NULL;
}

static void pack_options(struct pack *params, const struct args *args)
{
    const char *target = args->options[OPTION_TARGET], *dtype = args->options[OPTION_DTYPE];
    pack_map(params, (size_t)(target != NULL) + (dtype != NULL));
    if (target) {
        pack_str(params, "targets");
        pack_list(params, target);
    }
    if (dtype) {
        pack_str(params, "dtypes");
        pack_list(params, dtype);
    }
}

// Its name, its folder as the daemon finds it, and its text. False: it cannot be read.
static bool pack_file(struct pack *params, const char *path)
{
    size_t size;
    char *whole = realpath(path, NULL), *text = whole ? read_file(whole, &size) : NULL;
    if (text) {
        char *slash = strrchr(whole, '/');
        pack_str(params, slash + 1);
        pack_text(params, whole, slash == whole ? 1 : (size_t)(slash - whole));
        pack_text(params, text, size);
    }
    free(whole);
    free(text);
    return text != NULL;
}

int cmd_check(struct session *session, const struct args *args)
{
    struct pack params;
    struct opd_reply reply = { 0 };
    int code;
    pack_init(&params, 4);
    if (!pack_file(&params, args->words[1])) {
        pack_finish(&params);
        return session_refuse("%s: %s", args->words[1], strerror(errno));
    }
    pack_options(&params, args);
    opd_set_timeout(session->client, COMMAND_PATIENCE);
    if (!session_call(session, "check", &params, &reply, &code))
        return code;
    if (!session->json) {
        diagnosis_print_all(stderr, opd_map_get(&reply.result, "errors"));
        diagnosis_print_all(stderr, opd_map_get(&reply.result, "warnings"));
    }
    session_show(session, &reply.result, show_kernels);
    code = is_good(&reply.result) ? EXIT_GOOD : EXIT_ANSWERED;
    opd_reply_clear(&reply);
    return code;
}
