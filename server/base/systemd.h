#pragma once

// What systemd and its like agree with a service by the environment: sd_listen_fds(3),
// sd_notify(3).

#include <stdbool.h>

#include "base/err.h"

// The listening socket that this process was started with, which is its own from then on; -1: none.
// Errors: invalid_argument, where it is not one stream socket with a path.
bool systemd_take_socket(int *out_fd, struct opd_err *err);

void systemd_notify(const char *state); // "READY=1"; nothing where nobody listens
