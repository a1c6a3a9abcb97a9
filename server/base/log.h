#pragma once

// The daemon's log: one line each on standard error, "2026-01-31 12:00:00.123 info broker: ...".
// Every process of the daemon writes to the same stderr; a line is one write().

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };

void log_init(const char *role,
              enum log_level level);   // role must stay valid: "broker", "executor cuda:0"
int log_level_parse(const char *name); // -1: no such level
const char *log_level_name(enum log_level level);
enum log_level log_level_in_use(void);

void log_write(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_warn(...) log_write(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_LEVEL_ERROR, __VA_ARGS__)
