#pragma once

// What the kernels of a request have printed: to the client, before the reply, and into the log.

struct command;
struct request;

void printed_tell(const struct request *req, const struct command *c);
