// opctl reload: looks at the kernel folders now, and tells what came of it. opctl kernels add DIR:
// at one more.

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "opctl/command.h"
#include "opctl/diagnosis.h"
#include "opctl/table.h"

static const struct column changes[] = {
    { .title = "OPERATOR", .key = "op", .read = text_field_op, .least = 12 },
    { .title = "VERSION", .key = "version", .right = true },
    { .title = "STATE", .key = "state", .state = true },
    { .title = "TIME", .key = "ms", .read = text_field_ms, .right = true, .drop = 1 },
    { .title = "FILE", .key = "file", .least = 16, .drop = 2 },
};

static void show_changes(FILE *out, const msgpack_object *list)
{
    if (list->type == MSGPACK_OBJECT_ARRAY && list->via.array.size == 0)
        fputs("Nothing changed.\n", out);
    table_print(out, changes, sizeof changes / sizeof *changes, list);
}

static bool is_in_state(const msgpack_object *change, const char *expected)
{
    char state[16] = "";
    return opd_map_str(change, "state", state, sizeof state) && strcmp(state, expected) == 0;
}

static int ask(struct session *session, const char *method, struct pack *params)
{
    struct opd_reply reply = { 0 };
    int code;
    opd_set_timeout(session->client, COMMAND_PATIENCE);
    if (!session_call(session, method, params, &reply, &code))
        return code;
    session_show(session, &reply.result, show_changes);
    fflush(stdout);
    const msgpack_object *list = &reply.result;
    for (uint32_t i = 0; list->type == MSGPACK_OBJECT_ARRAY && i < list->via.array.size; i++) {
        const msgpack_object *change = &list->via.array.ptr[i];
        bool failed = is_in_state(change, "failed");
        if (failed)
            code = EXIT_ANSWERED;
        bool doubtful = is_in_state(change, "serving") && text_field(change, "message").s[0];
        if (!session->json && (failed || doubtful || is_in_state(change, "shadowed")))
            diagnosis_print(stderr, change);
    }
    opd_reply_clear(&reply);
    return code;
}

int cmd_reload(struct session *session, const struct args *args)
{
    (void)args;
    return ask(session, "reload", NULL);
}

int cmd_kernels(struct session *session, const struct args *args)
{
    char path[PATH_MAX];
    if (strcmp(args->words[1], "add") != 0)
        return session_refuse("'%s': expected kernels add DIR", args->words[1]);
    if (!realpath(args->words[2], path))
        return session_refuse("%s: %s", args->words[2], strerror(errno));
    struct pack params;
    pack_init(&params, 1);
    pack_str(&params, path);
    return ask(session, "kernels_add", &params);
}
