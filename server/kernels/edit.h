#pragma once

// Edits under way: new versions that are compiled and loaded while the old ones serve, and then
// served together or not at all.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct edit;
struct reload;
struct version;

// Adds a version to an edit, which is made where *edit is NULL; takes the reference over. A full
// one is started and another made. `since`: clock_ns() when the change was noticed.
void edit_add(struct reload *r, struct edit **edit, struct version *v, uint64_t since);
void edit_start(struct reload *r, struct edit *edit); // compiles what the old versions have in use

// An edit of the same file that came before is overtaken. Where it was one of several, the others
// go on alone.
void edit_overtake(struct reload *r, const char *path);
void edit_drop_loaded(struct reload *r, uint64_t owner); // what that connection loads

bool edit_has(const struct reload *r, const struct version *v); // the same text of the same file
bool edit_compiles(const struct reload *r, const struct version *v); // it is in one
bool edit_poll_all(struct reload *r); // true: one of them is over, served or failed
void edit_drop_all(struct reload *r); // the daemon stops

// An edit is not served: in the log, to those who follow events, and with the operator's next reply
// to each client. `op` "": none is known. version 0: it did not come to one.
void edit_tell_failure(struct reload *r, const char *op, int version, const char *file,
                       const struct opd_err *err, uint64_t since);
