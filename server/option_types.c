#include "option_types.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

bool option_set_text(const struct option_row *row, void *slot, const char *text,
                     struct opd_err *err)
{
    if (strlen(text) < (size_t)row->least)
        return opd_err_set(err, OPD_E_invalid_argument, "--%s: the path is empty", row->name);
    char **path = slot, *copy = mem_strdup(text);
    free(*path);
    *path = copy;
    return true;
}

bool option_set_count(const struct option_row *row, void *slot, const char *text,
                      struct opd_err *err)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (errno || end == text || *end || n < row->least || n > row->most)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "--%s: '%s', expected a number from %" PRId64 " to %" PRId64, row->name,
                           text, row->least, row->most);
    *(int *)slot = (int)n;
    return true;
}

static const char units[] = "KMGT";

// "64K": bounds are whole.
static const char *size_text(int64_t size, char out[24])
{
    int unit = -1;
    for (; size >= 1024 && size % 1024 == 0 && units[unit + 1]; unit++)
        size /= 1024;
    snprintf(out, 24, "%" PRId64 "%.1s", size, unit < 0 ? "" : &units[unit]);
    return out;
}

bool option_set_size(const struct option_row *row, void *slot, const char *text,
                     struct opd_err *err)
{
    char *end, least[24], most[24];
    errno = 0;
    double n = strtod(text, &end);
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    if (unit) {
        n *= (double)((uint64_t)1 << (10 * (unit - units + 1)));
        end++;
        if (*end == 'i')
            end++;
        if (*end == 'B')
            end++;
    }
    if (errno || end == text || *end || !(n >= 1) || n > (double)OPTION_MAX_SIZE)
        return opd_err_set(err, OPD_E_invalid_argument, "--%s: '%s', expected a size as 512M or 8G",
                           row->name, text);
    if (n < (double)row->least || n > (double)row->most)
        return opd_err_set(err, OPD_E_invalid_argument, "--%s: '%s', expected a size from %s to %s",
                           row->name, text, size_text(row->least, least),
                           size_text(row->most, most));
    *(uint64_t *)slot = (uint64_t)n;
    return true;
}

bool option_set_seconds(const struct option_row *row, void *slot, const char *text,
                        struct opd_err *err)
{
    char *end;
    double n = strtod(text, &end);
    if (end == text || *end || !(n > (double)row->least) || n < 0 || n > (double)row->most)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "--%s: '%s', expected seconds, %s 0 and at most %" PRId64, row->name,
                           text, row->least < 0 ? "at least" : "above", row->most);
    *(double *)slot = n;
    return true;
}

bool option_set_switch(const struct option_row *row, void *slot, const char *text,
                       struct opd_err *err)
{
    if (text && strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        return opd_err_set(err, OPD_E_invalid_argument, "%s: '%s', expected true or false",
                           row->name, text);
    *(bool *)slot = !text || strcmp(text, "true") == 0;
    return true;
}

bool option_set_log_level(const struct option_row *row, void *slot, const char *text,
                          struct opd_err *err)
{
    int level = *(int *)slot = log_level_parse(text);
    return level >= 0 ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "--%s: '%s' is none; expected debug, info, warn or error", row->name, text);
}

// One of two words: is it the first?
static bool set_either(const struct option_row *row, bool *slot, const char *text,
                       const char *first, const char *second, struct opd_err *err)
{
    *slot = strcmp(text, first) == 0;
    return *slot || strcmp(text, second) == 0 ||
           opd_err_set(err, OPD_E_invalid_argument, "--%s: '%s', expected %s or %s", row->name,
                       text, first, second);
}

bool option_set_blas(const struct option_row *row, void *slot, const char *text,
                     struct opd_err *err)
{
    bool vendor, ok = set_either(row, &vendor, text, "vendor", "own", err);
    *(bool *)slot = !vendor;
    return ok;
}

bool option_set_spare(const struct option_row *row, void *slot, const char *text,
                      struct opd_err *err)
{
    return set_either(row, slot, text, "auto", "off", err);
}

bool option_set_first_run(const struct option_row *row, void *slot, const char *text,
                          struct opd_err *err)
{
    return set_either(row, slot, text, "checked", "plain", err);
}
