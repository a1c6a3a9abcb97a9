#include "c/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    [OPD_OK] = "ok",
#define ERROR(name, number, python, advice) [number] = #name,
#include "../../protocol/errors.def"
#undef ERROR
};

const char *opd_code_name(int code)
{
    if (code < 0 || (size_t)code >= sizeof names / sizeof *names || !names[code])
        return "unknown";
    return names[code];
}

void opd_error_clear(struct opd_error *err)
{
    if (!err)
        return;
    free(err->log);
    *err = (struct opd_error){ 0 };
}

static void fill(struct opd_error *err, int code, const char *fmt, va_list args)
{
    opd_error_clear(err);
    err->code = code;
    err->local = true;
    snprintf(err->name, sizeof err->name, "%s", opd_code_name(code));
    vsnprintf(err->message, sizeof err->message, fmt, args);
}

bool error_set(struct opd_error *err, int code, const char *fmt, ...)
{
    if (!err)
        return false;
    va_list args;
    va_start(args, fmt);
    fill(err, code, fmt, args);
    va_end(args);
    return false;
}

bool error_set_errno(struct opd_error *err, int code, const char *fmt, ...)
{
    int number = errno;
    if (!err)
        return false;
    va_list args;
    va_start(args, fmt);
    fill(err, code, fmt, args);
    va_end(args);
    size_t n = strlen(err->message);
    snprintf(err->message + n, sizeof err->message - n, ": %s", strerror(number));
    return false;
}

static int read_code(const msgpack_object *slot)
{
    int64_t number;
    if (opd_map_int(slot, "number", &number) && number > 0 && number <= INT32_MAX)
        return (int)number;
    return OPD_INTERNAL;
}

bool error_set_reply(struct opd_error *err, const msgpack_object *slot)
{
    if (!err)
        return false;
    error_set(err, read_code(slot), "the daemon answered an error without a message");
    err->local = false;
    opd_map_str(slot, "code", err->name, sizeof err->name);
    opd_map_str(slot, "message", err->message, sizeof err->message);
    opd_map_str(slot, "op", err->op, sizeof err->op);
    const msgpack_object *log = opd_map_get(slot, "log");
    if (log && log->type == MSGPACK_OBJECT_STR)
        err->log = strndup(log->via.str.ptr, log->via.str.size);
    const msgpack_object *misfit = opd_map_get(slot, "misfit");
    err->misfit = misfit && misfit->type == MSGPACK_OBJECT_BOOLEAN && misfit->via.boolean;
    return false;
}

bool error_copy(struct opd_error *dst, const struct opd_error *src)
{
    if (!dst || dst == src)
        return false;
    opd_error_clear(dst);
    *dst = *src;
    if (src->log)
        dst->log = strdup(src->log);
    return false;
}
