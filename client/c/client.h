#pragma once

// What is behind opd.h's client: the socket, and the requests that have no taker yet.

#include <sys/uio.h>

#include "base/spin.h"
#include "c/done.h"
#include "c/inbox.h"
#include "c/lane.h"
#include "c/lane_call.h"
#include "c/message.h"
#include "c/notice.h"
#include "c/opd.h"
#include "c/pack.h"
#include "c/prepared.h"

struct request {
    uint32_t id;
    bool answered;
    bool forgotten; // dropped when the answer comes
    struct message answer;
    struct request *next;
};

struct opd_client {
    int fd;
    double timeout;
    size_t max_message; // the daemon takes no longer ones
    uint32_t last_request;
    int64_t last_id;
    struct inbox inbox;
    struct request *requests; // in the order in which they were sent
    struct request **end;
    struct notices notices;
    opd_print_fn *print; // NULL: nobody wants it
    void *print_data;
    opd_compile_fn *compile; // the same
    void *compile_data;
    struct prepared prepared;
    struct spin spin;
    struct done done;
    struct client_lane lane;
    struct lane_calls calls;
    void (*sends)(struct opd_client *client, const char *method); // before each request
    struct opd_error broken; // the code is not 0: why this connection is of no more use
};

// As opd_send(), of a message in at most 2 parts: what they hold together is one packed array.
bool client_send(struct opd_client *client, const char *method, const struct iovec params[2],
                 int fd, uint32_t *request, struct opd_error *err);

// As opd_wait(), `more` seconds longer than the timeout. A request that is not answered in time
// stays.
bool client_wait(struct opd_client *client, uint32_t request, double more, struct opd_reply *reply,
                 struct opd_error *err);

// A request that goes by a lane: its number, by which a reply may come; it is waited for, or
// dropped where none comes.
bool client_await(struct opd_client *client, uint32_t *request, struct opd_error *err);
void client_drop(struct opd_client *client, uint32_t request);
void client_look(struct opd_client *client); // at what the socket holds, without waiting

// Drops the request, or its reply when it comes. One that is not there is fine.
void client_forget(struct opd_client *client, uint32_t request);

// As opd_wait_notification().
bool client_wait_notice(struct opd_client *client, const char *method, double seconds,
                        struct opd_reply *params, struct opd_error *err);

// Sends what was packed, with `tail` behind it, and frees it.
bool client_send_packed(struct opd_client *client, const char *method, struct pack *params,
                        struct iovec tail, uint32_t *request, struct opd_error *err);

// Sends what was packed, waits for the reply, and frees what was packed.
bool client_call(struct opd_client *client, const char *method, struct pack *params,
                 struct opd_reply *reply, struct opd_error *err);

// The same, with more to its knobs: `tail` follows the packed bytes and belongs to the same array;
// `more` seconds are added to the timeout.
bool client_call_with(struct opd_client *client, const char *method, struct pack *params,
                      struct iovec tail, double more, struct opd_reply *reply,
                      struct opd_error *err);

// The request free, of ids of one kind.
bool client_free(struct opd_client *client, const char *kind, const int64_t *ids, size_t count,
                 struct opd_error *err);
