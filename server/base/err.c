#include "base/err.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static void format_message(struct opd_err *err, enum opd_err_code code, const char *fmt,
                           va_list args)
{
    if (!err)
        return;
    assert(err->code == OPD_E_none && code != OPD_E_none);
    err->code = code;
    vsnprintf(err->msg, sizeof err->msg, fmt, args);
}

bool opd_err_set(struct opd_err *err, enum opd_err_code code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    format_message(err, code, fmt, args);
    va_end(args);
    return false;
}

bool opd_err_prefix(struct opd_err *err, const char *fmt, ...)
{
    char old[sizeof err->msg];
    if (!err)
        return false;
    memcpy(old, err->msg, sizeof old);
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->msg, sizeof err->msg, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof err->msg) {
        size_t room = sizeof err->msg - (size_t)n;
        snprintf(err->msg + n, room, ": %.*s", (int)(room > 3 ? room - 3 : 0), old);
    }
    return false;
}

bool opd_err_errno(struct opd_err *err, enum opd_err_code code, const char *fmt, ...)
{
    int number = errno;
    va_list args;
    va_start(args, fmt);
    format_message(err, code, fmt, args);
    va_end(args);
    size_t n = err ? strlen(err->msg) : 0;
    if (err)
        snprintf(err->msg + n, sizeof err->msg - n, ": %s", strerror(number));
    return false;
}

void opd_err_clear(struct opd_err *err)
{
    free(err->log);
    opd_err_init(err);
}

void opd_err_copy(struct opd_err *dst, const struct opd_err *src)
{
    if (!dst)
        return;
    assert(dst->code == OPD_E_none);
    *dst = *src;
    if (src->log)
        dst->log = mem_strdup(src->log);
}

const char *opd_err_name(enum opd_err_code code)
{
    switch (code) {
#define ERROR(name, number, python, advice)                                                        \
    case OPD_E_##name:                                                                             \
        return #name;
#include "../../protocol/errors.def"
#undef ERROR
    case OPD_E_none:
        break;
    }
    return "none";
}
