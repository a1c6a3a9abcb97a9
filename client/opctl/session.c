#include "command.h"

#include <string.h>

#include "json.h"
#include "text.h"

int session_fail(struct opd_error *err)
{
    int code = EXIT_ANSWERED;
    if (err->local)
        code = err->code == OPD_INVALID_ARGUMENT ? EXIT_USAGE : EXIT_ABSENT;
    fprintf(stderr, "opctl: %s: ", err->name);
    text_print(stderr, err->message, false);
    putc('\n', stderr);
    if (err->log)
        text_print(stderr, err->log, true);
    opd_error_clear(err);
    return code;
}

static bool ask(struct session *s, const char *method, const char *argument,
                struct opd_reply *reply, struct opd_error *err)
{
    msgpack_sbuffer params;
    msgpack_packer p;
    msgpack_sbuffer_init(&params);
    msgpack_packer_init(&p, &params, msgpack_sbuffer_write);
    msgpack_pack_array(&p, argument ? 1 : 0);
    if (argument) {
        msgpack_pack_str(&p, strlen(argument));
        msgpack_pack_str_body(&p, argument, strlen(argument));
    }
    bool good = opd_call(s->client, method, &params, reply, err);
    msgpack_sbuffer_destroy(&params);
    return good;
}

int session_ask(struct session *s, const char *method, const char *argument, show_fn *show)
{
    struct opd_reply reply = { 0 };
    struct opd_error err = { 0 };
    if (!ask(s, method, argument, &reply, &err))
        return session_fail(&err);
    if (s->json) {
        json_write(stdout, &reply.result);
        putchar('\n');
    } else {
        show(stdout, &reply.result);
    }
    opd_reply_clear(&reply);
    return EXIT_GOOD;
}
