#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = { "debug", "info", "warn", "error" };

static const char *log_role = "opd";
static enum log_level log_level = LOG_LEVEL_INFO;

void log_init(const char *role, enum log_level level)
{
    log_role = role;
    log_level = level;
}

int log_level_parse(const char *name)
{
    for (int i = 0; i < 4; i++)
        if (strcmp(level_names[i], name) == 0)
            return i;
    return -1;
}

const char *log_level_name(enum log_level level)
{
    return level_names[level];
}

enum log_level log_level_in_use(void)
{
    return log_level;
}

void log_write(enum log_level level, const char *fmt, ...)
{
    if (level < log_level)
        return;
    char line[4096];
    struct timespec now;
    struct tm local;
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &local);
    size_t n = strftime(line, sizeof line, "%F %T", &local);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ld %s %s: ", now.tv_nsec / 1000000,
                          level_names[level], log_role);
    va_list args;
    va_start(args, fmt);
    int more = vsnprintf(line + n, sizeof line - n - 1, fmt, args);
    va_end(args);
    if (more > 0)
        n += (size_t)more;
    if (n > sizeof line - 2)
        n = sizeof line - 2;
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0)
        return; // nowhere left to say it
}
