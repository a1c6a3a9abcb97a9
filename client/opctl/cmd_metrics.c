// opctl metrics: the daemon's counters, for a scraper.

#include "opctl/command.h"

static void show_metrics(FILE *out, const msgpack_object *result)
{
    if (result->type == MSGPACK_OBJECT_STR)
        fwrite(result->via.str.ptr, 1, result->via.str.size, out);
}

int cmd_metrics(struct session *session, const struct args *args)
{
    (void)args;
    return session_ask(session, "metrics", NULL, show_metrics);
}
