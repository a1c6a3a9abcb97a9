#pragma once

// Runs of operators as they end, with the time that they took on the device, for the connections
// that follow them. While there is none, nothing is measured.

#include <stdbool.h>

#include "base/err.h"

struct command;
struct conn;
struct request;
struct trace; // of one command: whose it is, and since when

void trace_follow(struct conn *c, bool follows);

// A run that is about to be submitted for a connection: it will be timed.
struct trace *trace_begin(struct command *c, const struct conn *conn);
// The request's run has ended: tells those who follow.
void trace_end(const struct request *req, const struct command *c, const struct opd_err *err);
void trace_free(struct trace *t); // NULL is fine
