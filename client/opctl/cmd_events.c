// opctl events: reloads, failures, restarts, as they come.

#include <string.h>

#include "opctl/command.h"
#include "opctl/diagnosis.h"
#include "opctl/term.h"
#include "opctl/text.h"

enum { SHOWN = 20 }; // of those that were before, to people

static bool is_empty(const char *s)
{
    return s[0] == '\0' || strcmp(s, "-") == 0;
}

// "2026-11-21 12:00:01  reloaded     softplus version 3, 213 ms, softplus.cu", then the log.
static void show_event(FILE *out, const msgpack_object *event)
{
    struct text kind = text_field(event, "kind"), op = text_field_op(event, "op");
    struct text version = text_field(event, "version"), ms = text_field_ms(event, "ms");
    struct text file = text_field(event, "file");
    struct text message = { "" };
    if (diagnosis_has_message(event))
        message = text_field(event, "message");
    const struct {
        const char *before, *text;
    } parts[] = {
        { " ", op.s },
        { " version ", version.s },
        { ", ", ms.s },
        { is_empty(op.s) ? " " : ", ", file.s },
        { is_empty(op.s) && is_empty(file.s) ? " " : ": ", message.s },
    };
    fprintf(out, "%s  ", text_field_time(event, "time").s);
    term_style(out, term_style_of(kind.s));
    text_print(out, kind.s, false);
    term_style(out, STYLE_PLAIN);
    fprintf(out, "%*s", kind.s[0] ? 12 - text_width(kind.s) : 12, "");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (is_empty(parts[i].text))
            continue;
        fputs(parts[i].before, out);
        text_print(out, parts[i].text, false);
    }
    putc('\n', out);
    diagnosis_print_log(out, event);
}

// A line at once, so that whoever reads a pipe has it. False: it could not be written.
static bool print_event(struct session *session, const msgpack_object *event)
{
    session_show(session, event, show_event);
    return fflush(stdout) == 0 && !ferror(stdout);
}

static bool print_all(struct session *session, const msgpack_object *list, uint32_t most)
{
    if (!list || list->type != MSGPACK_OBJECT_ARRAY)
        return true;
    uint32_t count = list->via.array.size;
    for (uint32_t i = count > most ? count - most : 0; i < count; i++)
        if (!print_event(session, &list->via.array.ptr[i]))
            return false;
    return true;
}

static int follow(struct session *session)
{
    struct opd_reply params = { 0 };
    struct opd_error err = { 0 };
    bool written = true;
    while (written && opd_wait_notification(session->client, "event", -1, &params, &err))
        written = print_all(session, &params.result, UINT32_MAX);
    opd_reply_clear(&params);
    return written ? session_fail(&err) : EXIT_GOOD; // main() tells of what was not written
}

int cmd_events(struct session *session, const struct args *args)
{
    bool follows = !args->options[OPTION_NO_FOLLOW];
    if (!follows && args->options[OPTION_FOLLOW])
        return session_refuse("--follow or --no-follow, not both");
    struct pack params;
    struct opd_reply reply = { 0 };
    int code;
    pack_init(&params, 2);
    pack_int(&params, 0);
    pack_map(&params, 1);
    pack_str(&params, "follow");
    pack_bool(&params, follows);
    if (!session_call(session, "events", &params, &reply, &code))
        return code;
    bool written = print_all(session, opd_map_get(&reply.result, "events"),
                             session->json ? UINT32_MAX : SHOWN);
    opd_reply_clear(&reply);
    return written && follows ? follow(session) : EXIT_GOOD;
}
