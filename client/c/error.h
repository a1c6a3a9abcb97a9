#pragma once

// Filling the caller's error.

#include "c/opd.h"

// For what this side found: sets `local`. err may be NULL. Always false.
bool error_set(struct opd_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// The same, with errno's text at the end: "fmt: No such file or directory". Always false.
bool error_set_errno(struct opd_error *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// Fills from the error slot of a reply. Whatever the slot holds, the error is filled. Always false.
bool error_set_reply(struct opd_error *err, const msgpack_object *slot);

// Replaces what dst held. Always false.
bool error_copy(struct opd_error *dst, const struct opd_error *src);
