#pragma once

// Whose files are run, and who may connect. A kernel runs with the daemon's rights: so its file,
// and the folder that it is in, must be such that nobody else can change them.
//
// Trusted are root, the daemon's user, and the owner of the daemon's program, who could change that
// as well; and the members of --group, which is told once at start.

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/err.h"

// The group that is let in besides the daemon's user; "": none. Errors: invalid_argument.
bool trust_init(const char *group, struct opd_err *err);
bool trust_group(gid_t *out); // false: there is none

// Errors: invalid_argument: who else can change it, and what to do.
bool trust_check(const char *path, const struct stat *st, struct opd_err *err);
bool trust_folder(const char *path, struct opd_err *err); // one that is not there passes

bool trust_peer(int sock); // may who is at the other end connect?
