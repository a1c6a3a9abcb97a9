// opctl metrics: the daemon's counters, for a scraper: once, or by HTTP.

#include <string.h>
#include <unistd.h>

#include "opctl/command.h"
#include "opctl/serve.h"

static void show_metrics(FILE *out, const msgpack_object *result)
{
    if (result->type == MSGPACK_OBJECT_STR)
        fwrite(result->via.str.ptr, 1, result->via.str.size, out);
}

// Over a connection of its own, so that the daemon may be another each time.
static bool answer(FILE *out, void *data)
{
    struct opd_error err = { 0 };
    struct opd_reply reply = { 0 };
    struct opd_client *client = opd_connect(data, &err);
    if (client)
        opd_set_timeout(client, OPD_CONNECT_TIMEOUT);
    bool good = client && opd_call(client, "metrics", NULL, &reply, &err);
    if (good)
        show_metrics(out, &reply.result);
    else
        fprintf(out, "opctl: %s: %s\n", err.name, err.message);
    opd_reply_clear(&reply);
    opd_error_clear(&err);
    opd_close(client);
    return good;
}

int cmd_metrics(struct session *session, const struct args *args)
{
    const char *address = args->options[OPTION_LISTEN];
    char url[SERVE_TEXT], why[SERVE_TEXT];
    if (!address)
        return session_ask(session, "metrics", NULL, show_metrics);
    if (session->json)
        return session_refuse("--listen answers as Prometheus reads it: no --json");
    int fd = serve_open(address, url, why);
    if (fd < 0)
        return session_refuse("%s", why);
    opd_close(session->client);
    session->client = NULL;
    printf("%s\n", url);
    fflush(stdout);
    serve_all(fd, answer, (void *)(uintptr_t)args->options[OPTION_SOCKET]);
    close(fd);
    return EXIT_ANSWERED;
}
