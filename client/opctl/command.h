#pragma once

// What a command is: a row of the table in main.c, and a function in a file of its own.

#include <stdbool.h>
#include <stdio.h>

#include <opd.h>

enum { // what opctl exits with
    EXIT_GOOD = 0,
    EXIT_ANSWERED = 1, // the daemon answered an error, or the output could not be written
    EXIT_USAGE = 2,
    EXIT_ABSENT = 3, // no daemon, or none that answers
};

struct session {
    struct opd_client *client;
    bool json;
};

// Prints a result for people.
typedef void show_fn(FILE *out, const msgpack_object *result);

// Sends a request with one string, or none (NULL), and prints the result: as JSON if the user asked
// for it, else by `show`. Returns the exit code; errors have been printed.
int session_ask(struct session *session, const char *method, const char *argument, show_fn *show);

// Prints what went wrong and clears it. Returns the exit code.
int session_fail(struct opd_error *err);

int cmd_status(struct session *session, char **args); // args: as many as the row allows, then NULLs
int cmd_ops(struct session *session, char **args);
int cmd_tensors(struct session *session, char **args);
int cmd_stop(struct session *session, char **args);
