#include "opctl/command.h"

#include <stdarg.h>

#include "opctl/json.h"
#include "opctl/term.h"
#include "opctl/text.h"

int session_fail(struct opd_error *err)
{
    int code = EXIT_ANSWERED;
    if (err->local)
        code = err->code == OPD_INVALID_ARGUMENT ? EXIT_USAGE : EXIT_ABSENT;
    term_style_error(STYLE_BAD);
    fprintf(stderr, "opctl: %s: ", err->name);
    term_style_error(STYLE_PLAIN);
    text_print(stderr, err->message, false);
    putc('\n', stderr);
    if (err->log)
        text_print(stderr, err->log, true);
    opd_error_clear(err);
    return code;
}

int session_refuse(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    term_style_error(STYLE_BAD);
    fputs("opctl: ", stderr);
    term_style_error(STYLE_PLAIN);
    vfprintf(stderr, fmt, args);
    putc('\n', stderr);
    va_end(args);
    return EXIT_USAGE;
}

bool session_call(struct session *s, const char *method, struct pack *params,
                  struct opd_reply *reply, int *code)
{
    struct opd_error err = { 0 };
    bool good = opd_call(s->client, method, params ? &params->bytes : NULL, reply, &err);
    if (params)
        pack_finish(params);
    *code = good ? EXIT_GOOD : session_fail(&err);
    return good;
}

void session_show(struct session *s, const msgpack_object *result, show_fn *show)
{
    if (s->json) {
        json_write(stdout, result);
        putchar('\n');
    } else {
        show(stdout, result);
    }
}

int session_ask(struct session *s, const char *method, struct pack *params, show_fn *show)
{
    struct opd_reply reply = { 0 };
    int code;
    if (session_call(s, method, params, &reply, &code))
        session_show(s, &reply.result, show);
    opd_reply_clear(&reply);
    return code;
}
