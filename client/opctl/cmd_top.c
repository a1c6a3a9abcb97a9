// opctl top: what devices and operators do. On a terminal drawn in place, until q; else, and with
// --no-follow, a block for each second.

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "opctl/command.h"
#include "opctl/screen.h"
#include "opctl/term.h"
#include "opctl/text.h"
#include "opctl/top_view.h"

static const double INTERVAL = 1, PATIENCE = 2; // seconds

struct top {
    struct session *session;
    struct opd_reply now, before; // before: empty until there are two
    struct top_view view;
    bool waits;   // for a reply
    double since; // when that was asked for, or when it is to be
    uint32_t request;
};

static double clock_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

// The devices measure how fast they copy, once; `status` tells it from then on.
static void ask_speeds(struct session *session, const msgpack_object *status, bool wait)
{
    const msgpack_object *list = opd_map_get(status, "devices");
    for (uint32_t i = 0; list && list->type == MSGPACK_OBJECT_ARRAY && i < list->via.array.size;
         i++) {
        struct pack params;
        uint32_t request;
        double known = 0;
        text_number(&list->via.array.ptr[i], "copy", &known);
        if (known > 0)
            continue;
        pack_init(&params, 1);
        pack_str(&params, text_field(&list->via.array.ptr[i], "name").s);
        if (wait)
            opd_call(session->client, "device_speed", &params.bytes, NULL, NULL);
        else if (opd_send(session->client, "device_speed", &params.bytes, -1, &request, NULL))
            opd_forget(session->client, request);
        pack_finish(&params);
    }
}

static void take(struct top *top, struct opd_reply *reply)
{
    opd_reply_clear(&top->before);
    top->before = top->now;
    top->now = *reply;
    *reply = (struct opd_reply){ 0 };
    top->view.now = &top->now.result;
    top->view.before = top->before.zone ? &top->before.result : NULL;
}

// --- line by line

static int follow_lines(struct top *top, bool follows)
{
    struct session *session = top->session;
    struct opd_reply reply = { 0 };
    int code;
    bool good = session_call(session, "status", NULL, &reply, &code);
    if (good && !session->json) {
        ask_speeds(session, &reply.result, true);
        good = session_call(session, "status", NULL, &reply, &code);
    }
    take(top, &reply);
    while (good) {
        sleep((unsigned)INTERVAL);
        good = session_call(session, "status", NULL, &reply, &code);
        if (!good)
            break;
        take(top, &reply);
        top->view.width = term_columns();
        if (session->json)
            session_show(session, &top->now.result, NULL);
        else
            top_show(stdout, &top->view);
        good = follows && fflush(stdout) == 0;
        if (good)
            putchar('\n');
    }
    opd_reply_clear(&reply);
    return code;
}

// --- in place

static void show_keys(FILE *out, const struct top *top)
{
    const struct top_view *v = &top->view;
    int left = v->width ? v->width : INT32_MAX;
    if (top->waits && clock_now() - top->since > PATIENCE) {
        term_style(out, STYLE_BAD);
        text_print_cut(out, "The daemon does not answer.", left);
        term_style(out, STYLE_PLAIN);
        return;
    }
    fputs("q quit", out);
    left -= 6;
    for (size_t i = 0; i <= top_n_sorts; i++) {
        const struct top_sort *sort = &top_sorts[i];
        char text[32];
        snprintf(text, sizeof text, i < top_n_sorts ? "  %c %s" : "  r reverse",
                 i < top_n_sorts ? sort->key : 'r', i < top_n_sorts ? sort->name : "");
        if ((left -= text_width(text)) < 0)
            return;
        bool is_chosen = i < top_n_sorts ? sort->key == v->sort : v->reversed;
        term_style(out, is_chosen ? STYLE_HEAD : STYLE_DIM);
        fputs(text, out);
        term_style(out, STYLE_PLAIN);
    }
}

static void draw(struct top *top)
{
    char *frame = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&frame, &size);
    if (!out)
        return;
    top->view.width = term_columns();
    top->view.height = term_rows() - 1;
    top_show(out, &top->view);
    fflush(out);
    // The last line of the terminal tells the keys.
    size_t at = 0;
    int rows = 0;
    while (at < size && rows < top->view.height)
        rows += frame[at++] == '\n';
    fseeko(out, (off_t)at, SEEK_SET);
    for (; rows < top->view.height; rows++)
        putc('\n', out);
    show_keys(out, top);
    fclose(out);
    screen_draw(frame, size);
    free(frame);
}

// False: that ends it.
static bool press(struct top *top, int key)
{
    struct top_view *v = &top->view;
    int page = v->height / 2 + 1;
    switch (key) {
    case SCREEN_ENDED:
    case 'q':
    case 'Q':
    case 0x03: // ^C, where the terminal makes no signal of it
        return false;
    case 'r':
        v->reversed = !v->reversed;
        break;
    case ' ':
        top->since = top->waits ? top->since : 0; // at once
        break;
    case 'j':
    case SCREEN_DOWN:
        v->skip++;
        break;
    case 'k':
    case SCREEN_UP:
        v->skip--;
        break;
    case SCREEN_PAGE_DOWN:
        v->skip += page;
        break;
    case SCREEN_PAGE_UP:
        v->skip -= page;
        break;
    case SCREEN_HOME:
        v->skip = 0;
        break;
    default:
        for (size_t i = 0; i < top_n_sorts; i++)
            if (top_sorts[i].key == key)
                v->sort = (char)key;
    }
    int64_t n = 0;
    const msgpack_object *runs = opd_map_get(v->now, "runs");
    if (runs && runs->type == MSGPACK_OBJECT_ARRAY)
        n = runs->via.array.size;
    v->skip = v->skip < 0 ? 0 : v->skip > n ? (int)n : v->skip;
    return true;
}

// Asks where it is time to. False with err: the daemon has gone.
static bool ask(struct top *top, struct opd_error *err)
{
    if (top->waits || clock_now() < top->since)
        return true;
    top->since = clock_now();
    top->waits = opd_send(top->session->client, "status", NULL, -1, &top->request, err);
    return top->waits;
}

// False with err: as ask().
static bool receive(struct top *top, struct opd_error *err)
{
    struct opd_reply reply = { 0 };
    if (opd_wait(top->session->client, top->request, &reply, err)) {
        take(top, &reply);
        top->waits = false;
        top->since += INTERVAL;
        return true;
    }
    bool late = err->local && err->code == OPD_DEADLINE_EXCEEDED;
    if (late)
        opd_error_clear(err);
    return late;
}

static int follow_screen(struct top *top)
{
    struct opd_client *client = top->session->client;
    struct opd_reply reply = { 0 };
    struct opd_error err = { 0 };
    int code;
    if (!session_call(top->session, "status", NULL, &reply, &code))
        return code;
    ask_speeds(top->session, &reply.result, false);
    take(top, &reply);
    opd_set_timeout(client, INTERVAL);
    top->since = clock_now() + INTERVAL / 4;
    top->view.all = true;
    screen_enter();
    for (bool good = true; good;) {
        draw(top);
        double left = top->waits ? INTERVAL : top->since - clock_now();
        int key = screen_wait(top->waits ? opd_fd(client) : -1, left > 0 ? left : 0);
        if (key == SCREEN_READABLE)
            good = receive(top, &err);
        else if (key != SCREEN_NONE)
            good = press(top, key);
        good = good && ask(top, &err);
    }
    screen_leave();
    return err.code ? session_fail(&err) : EXIT_GOOD;
}

int cmd_top(struct session *session, const struct args *args)
{
    bool follows = !args->options[OPTION_NO_FOLLOW];
    if (!follows && args->options[OPTION_FOLLOW])
        return session_refuse("--follow or --no-follow, not both");
    struct top top = { .session = session, .view = { .sort = 't' } };
    bool draws = follows && term_draws() && !session->json;
    int code = draws ? follow_screen(&top) : follow_lines(&top, follows);
    opd_reply_clear(&top.now);
    opd_reply_clear(&top.before);
    return code;
}
