#pragma once

// One error, owned by the caller, filled exactly once at the place of failure.
//
// A function that can fail returns false (or NULL) and fills the error; the setters return false,
// so that the common case is one line:  return opd_err_set(err, OPD_E_invalid_argument, "%s has
// rank %d, expected %d", ...);

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

// In messages: "%d tensor%s", n, PLURAL_S(n).
#define PLURAL_S(n) ((n) == 1 ? "" : "s")

enum opd_err_code {
    OPD_E_none = 0,
#define ERROR(name, number, python, advice) OPD_E_##name = number,
#include "../../protocol/errors.def"
#undef ERROR
};

struct opd_err {
    enum opd_err_code code;
    char msg[1024]; // one line, safe to log and to send
    char *log;      // the compiler's output, or NULL; freed by opd_err_clear()
    bool misfit;    // a prepared call is not what it was: its client may prepare it again
};

// Makes memory an empty error, as zeros are, without writing all of it.
static inline void opd_err_init(struct opd_err *err)
{
    err->code = OPD_E_none;
    err->msg[0] = '\0';
    err->log = NULL;
    err->misfit = false;
}

// Fills an empty error; asserts that it was empty, so that a second failure cannot hide the first.
// Always false. For this and the next three, NULL is an error that nobody wants to know.
bool opd_err_set(struct opd_err *err, enum opd_err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// Puts context before the message ("context: message"). Always false.
bool opd_err_prefix(struct opd_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

// Fills an empty error from errno: "fmt: No such file or directory". Always false.
bool opd_err_errno(struct opd_err *err, enum opd_err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

void opd_err_clear(struct opd_err *err); // frees the log, empties the error; zeroed is fine
void opd_err_copy(struct opd_err *dst,
                  const struct opd_err *src);     // dst must be empty; the log is copied
const char *opd_err_name(enum opd_err_code code); // "invalid_argument"
