// The connection and its requests: opd.h's first half.

#include "c/opd.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "c/client.h"
#include "c/error.h"
#include "c/sock.h"
#include "base/version.h"

#define REQUEST(name, since, params, result, doc)
#include "../../protocol/protocol.def"
#undef REQUEST

static const char empty_array[] = "\x90";

bool opd_default_socket(char *path, size_t size)
{
    const char *given = getenv("OPD_SOCKET");
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    int n;
    if (given && *given)
        n = snprintf(path, size, "%s", given);
    else if (runtime && *runtime)
        n = snprintf(path, size, "%s/opd/opd.sock", runtime);
    else
        n = snprintf(path, size, "/tmp/opd-%u/opd.sock", (unsigned)getuid());
    return n >= 0 && (size_t)n < size;
}

struct opd_client *opd_open_fd(int fd, struct opd_error *err)
{
    int type = 0;
    socklen_t size = sizeof type;
    struct opd_client *c = NULL;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0)
        error_set_errno(err, OPD_INVALID_ARGUMENT, "file descriptor %d is no socket", fd);
    else if (type != SOCK_STREAM)
        error_set(err, OPD_INVALID_ARGUMENT, "file descriptor %d is no stream socket", fd);
    else if (!(c = calloc(1, sizeof *c)))
        error_set(err, OPD_OUT_OF_MEMORY, "no host memory for a client");
    if (!c) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    c->fd = fd;
    c->timeout = OPD_TIMEOUT;
    c->max_message = MPSCAN_DEFAULT_MESSAGE;
    c->end = &c->requests;
    c->sends = lane_call_sends;
    return c;
}

static bool check_greeting(struct opd_client *c, const msgpack_object *greeting,
                           struct opd_error *err)
{
    int64_t protocol, max_message;
    if (!opd_map_int(greeting, "protocol", &protocol))
        return error_set(err, OPD_MALFORMED_MESSAGE, "the greeting names no protocol version");
    if (protocol != OPD_PROTOCOL)
        return error_set(
            err, OPD_UNAVAILABLE,
            "the daemon speaks protocol %lld, this library %d: use versions that match",
            (long long)protocol, OPD_PROTOCOL);
    const msgpack_object *limits = opd_map_get(greeting, "limits");
    if (limits && opd_map_int(limits, "max_message", &max_message) && max_message > 0)
        c->max_message = (size_t)max_message;
    const msgpack_object *spins = opd_map_get(greeting, "spins");
    spin_init(&c->spin, spins && spins->type == MSGPACK_OBJECT_BOOLEAN && spins->via.boolean);
    return true;
}

static bool greet(struct opd_client *c, struct opd_error *err)
{
    struct pack p;
    struct opd_reply reply = { 0 };
    c->timeout = OPD_CONNECT_TIMEOUT;
    pack_init(&p, 2);
    pack_str(&p, "libopd " OPD_VERSION);
    pack_map(&p, 0);
    bool greeted = client_call(c, "hello", &p, &reply, err) &&
                   check_greeting(c, &reply.result, err);
    opd_reply_clear(&reply);
    c->timeout = OPD_TIMEOUT;
    return greeted;
}

static bool hear(struct opd_client *c, const char *methods, struct opd_error *err)
{
    struct pack p;
    pack_init(&p, 2);
    pack_str(&p, ""); // the name stays
    pack_map(&p, 1);
    pack_str(&p, "notify");
    pack_list(&p, methods);
    return client_call(c, "hello", &p, NULL, err);
}

bool opd_on_print(struct opd_client *c, opd_print_fn *print, void *data, struct opd_error *err)
{
    c->print = print;
    c->print_data = data;
    return !print || hear(c, "printed", err);
}

bool opd_on_compile(struct opd_client *c, opd_compile_fn *compile, void *data,
                    struct opd_error *err)
{
    c->compile = compile;
    c->compile_data = data;
    return !compile || hear(c, "compiling,compiled", err);
}

// Seconds: a daemon that was killed takes connections until its socket goes with it, after its
// memory. They end unanswered.
static const double ENDING = 1.0;

// False, with *client NULL or one that is of no more use: err says why.
static bool try_to_connect(const char *path, bool named, struct opd_client **client,
                           struct opd_error *err)
{
    int fd = sock_connect(path, named, OPD_CONNECT_TIMEOUT, err);
    *client = fd >= 0 ? opd_open_fd(fd, err) : NULL;
    return *client && greet(*client, err);
}

struct opd_client *opd_connect(const char *path, struct opd_error *err)
{
    char standard[4096];
    const char *given = getenv("OPD_SOCKET");
    bool named = path || (given && *given);
    if (!path && !opd_default_socket(standard, sizeof standard)) {
        error_set(err, OPD_INVALID_ARGUMENT, "the default socket's path is too long");
        return NULL;
    }
    uint64_t end = sock_deadline(ENDING);
    struct opd_client *c;
    while (!try_to_connect(path ? path : standard, named, &c, err)) {
        bool again = c && c->broken.code == OPD_CONNECTION_LOST && clock_ns() < end;
        opd_close(c);
        if (!again)
            return NULL;
        poll(NULL, 0, 5);
    }
    return c;
}

void opd_close(struct opd_client *c)
{
    if (!c)
        return;
    close(c->fd);
    while (c->requests) {
        struct request *r = c->requests;
        c->requests = r->next;
        message_clear(&r->answer);
        free(r);
    }
    notices_finish(&c->notices);
    lane_close(c);
    done_finish(&c->done);
    prepared_finish(&c->prepared);
    inbox_finish(&c->inbox);
    opd_error_clear(&c->broken);
    free(c);
}

int opd_fd(const struct opd_client *c)
{
    return c->fd;
}

void opd_set_timeout(struct opd_client *c, double seconds)
{
    c->timeout = seconds;
}

int64_t opd_new_id(struct opd_client *c)
{
    int64_t freed = lane_call_id(c);
    return freed ? freed : ++c->last_id;
}

static bool is_array(const char *bytes, size_t size)
{
    struct mpscan scan = { 0 };
    unsigned char first = size ? (unsigned char)*bytes : 0;
    bool array = (first & 0xf0) == 0x90 || first == 0xdc || first == 0xdd;
    return array && mpscan_scan(&scan, bytes, size, NULL) == MPSCAN_DONE && scan.position == size;
}

bool opd_send(struct opd_client *c, const char *method, const msgpack_sbuffer *params, int fd,
              uint32_t *request, struct opd_error *err)
{
    struct iovec parts[2] = { { (void *)empty_array, 1 }, { 0 } };
    if (params)
        parts[0] = (struct iovec){ params->data, params->size };
    if (!is_array(parts[0].iov_base, parts[0].iov_len))
        return error_set(err, OPD_INVALID_ARGUMENT,
                         "%s: the parameters are not one packed array within the limits", method);
    lane_call_clear(c); // it may name what is freed, or hold what is not
    return client_send(c, method, parts, fd, request, err);
}

bool opd_wait(struct opd_client *c, uint32_t request, struct opd_reply *reply,
              struct opd_error *err)
{
    return client_wait(c, request, 0, reply, err);
}

void opd_forget(struct opd_client *c, uint32_t request)
{
    client_forget(c, request);
}

bool opd_wait_notification(struct opd_client *c, const char *method, double seconds,
                           struct opd_reply *params, struct opd_error *err)
{
    return client_wait_notice(c, method, seconds, params, err);
}

bool opd_call(struct opd_client *c, const char *method, const msgpack_sbuffer *params,
              struct opd_reply *reply, struct opd_error *err)
{
    uint32_t request;
    if (!opd_send(c, method, params, -1, &request, err))
        return false;
    bool good = opd_wait(c, request, reply, err);
    opd_forget(c, request);
    return good;
}
