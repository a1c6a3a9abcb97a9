#include "opctl/term.h"

#include <langinfo.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static bool is_wide, colours, error_colours, draws;
const char *term_cut = "~";

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

void term_init(bool wide)
{
    const char *kind = getenv("TERM");
    bool able = kind && *kind && strcmp(kind, "dumb") != 0;
    // Widths of characters are looked up in the locale: in one that has all of them.
    bool utf8 = setlocale(LC_CTYPE, "") && strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    if (!utf8)
        setlocale(LC_CTYPE, "C.UTF-8");
    term_cut = utf8 ? "\xe2\x80\xa6" : "~";
    is_wide = wide;
    draws = able && isatty(STDOUT_FILENO);
    colours = draws && !is_set("NO_COLOR");
    error_colours = able && isatty(STDERR_FILENO) && !is_set("NO_COLOR");
}

static struct winsize get_size(void)
{
    struct winsize size = { 0 };
    const char *columns = getenv("COLUMNS");
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
        return (struct winsize){ 0 };
    if (size.ws_col == 0) // nobody has told the terminal
        size.ws_col = columns && atoi(columns) > 0 ? (unsigned short)atoi(columns) : 80;
    if (size.ws_row == 0)
        size.ws_row = 24;
    return size;
}

int term_columns(void)
{
    return is_wide ? 0 : get_size().ws_col;
}

int term_rows(void)
{
    return get_size().ws_row;
}

bool term_draws(void)
{
    return draws;
}

static const char *const sequences[] = {
    [STYLE_PLAIN] = "\x1b[m",  [STYLE_HEAD] = "\x1b[1m", [STYLE_GOOD] = "\x1b[32m",
    [STYLE_WARN] = "\x1b[33m", [STYLE_BAD] = "\x1b[31m", [STYLE_DIM] = "\x1b[2m",
};

void term_style(FILE *out, enum style style)
{
    if (colours)
        fputs(sequences[style], out);
}

void term_style_error(enum style style)
{
    if (error_colours)
        fputs(sequences[style], stderr);
}

enum style term_style_of(const char *word)
{
    static const struct {
        const char *word;
        enum style style;
    } words[] = {
        { "ready", STYLE_GOOD },    { "serving", STYLE_GOOD },   { "reloaded", STYLE_GOOD },
        { "proved", STYLE_GOOD },   { "compiled", STYLE_GOOD },  { "failed", STYLE_BAD },
        { "doubted", STYLE_BAD },   { "device", STYLE_BAD },     { "starting", STYLE_WARN },
        { "shadowed", STYLE_WARN }, { "withdrawn", STYLE_WARN }, { "restarting", STYLE_WARN },
        { "retired", STYLE_DIM },
    };
    size_t length = strcspn(word, ",");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].word) == length && memcmp(words[i].word, word, length) == 0)
            return words[i].style;
    return STYLE_PLAIN;
}
