#pragma once

// What a command is: a row of the table in main.c, and a function in a file of its own.

#include <stdbool.h>
#include <stdio.h>

#include "c/opd.h"

#include "opctl/args.h"
#include "c/pack.h"

enum { // what opctl exits with
    EXIT_GOOD = 0,
    EXIT_ANSWERED = 1, // the daemon answered an error, a kernel did not compile, or the output
                       // could not be written
    EXIT_USAGE = 2,
    EXIT_ABSENT = 3, // no daemon, or none that answers
};

enum { COMMAND_PATIENCE = 600 }; // seconds that requests may take for which the daemon compiles

struct session {
    struct opd_client *client;
    bool json;
};

// Prints a result for people.
typedef void show_fn(FILE *out, const msgpack_object *result);

// Sends a request and waits for its reply. `params` is finished; NULL: none. False: the error has
// been printed, and *code is what to exit with.
bool session_call(struct session *session, const char *method, struct pack *params,
                  struct opd_reply *reply, int *code);

// Prints a result: as JSON if the user asked for it, else by `show`.
void session_show(struct session *session, const msgpack_object *result, show_fn *show);

// session_call() and session_show(). Returns the exit code.
int session_ask(struct session *session, const char *method, struct pack *params, show_fn *show);

// Prints what went wrong and clears it. Returns the exit code.
int session_fail(struct opd_error *err);

// Prints "opctl: what" for a command line that makes no sense. Returns the exit code.
int session_refuse(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

// args->words[0] is the command's name; the table has seen to how many words and which options.
int cmd_status(struct session *session, const struct args *args);
int cmd_ops(struct session *session, const struct args *args);
int cmd_tensors(struct session *session, const struct args *args);
int cmd_reload(struct session *session, const struct args *args);
int cmd_kernels(struct session *session, const struct args *args);
int cmd_check(struct session *session, const struct args *args);
int cmd_events(struct session *session, const struct args *args);
int cmd_rollback(struct session *session, const struct args *args);
int cmd_pin(struct session *session, const struct args *args);
int cmd_metrics(struct session *session, const struct args *args);
int cmd_top(struct session *session, const struct args *args);
int cmd_trace(struct session *session, const struct args *args);
int cmd_restart(struct session *session, const struct args *args);
int cmd_upgrade(struct session *session, const struct args *args);
int cmd_faults(struct session *session, const struct args *args); // session->client: may be NULL
int cmd_stop(struct session *session, const struct args *args);
bool stop_keeper(const char *socket_path); // where no daemon serves. False: there is none to end

int ops_show_code(struct session *session, const struct args *args); // ops NAME --ptx | --sass
