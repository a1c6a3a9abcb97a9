#include "compiler/host_lex.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

static void advance(struct host_lexer *l)
{
    if (*l->p == '\n') {
        l->line++;
        l->fresh = true;
    }
    l->p++;
}

static void skip_block_comment(struct host_lexer *l)
{
    bool fresh = l->fresh;
    l->p += 2;
    while (*l->p && !(l->p[0] == '*' && l->p[1] == '/'))
        advance(l);
    l->p += *l->p ? 2 : 0;
    l->fresh = fresh;
}

static void skip_blanks(struct host_lexer *l)
{
    for (;;) {
        if (l->p[0] == '/' && l->p[1] == '*')
            skip_block_comment(l);
        else if (l->p[0] == '/' && l->p[1] == '/')
            l->p += strcspn(l->p, "\n");
        else if (l->p[0] == '\\' && l->p[1] == '\n')
            l->p++, l->line++, l->p++;
        else if (*l->p && isspace((unsigned char)*l->p))
            advance(l);
        else
            return;
    }
}

static void skip_directive(struct host_lexer *l)
{
    while (*l->p && *l->p != '\n') {
        if (l->p[0] == '/' && l->p[1] == '*') {
            skip_block_comment(l);
        } else if (l->p[0] == '/' && l->p[1] == '/') {
            l->p += strcspn(l->p, "\n");
        } else if (l->p[0] == '\\' && l->p[1] == '\n') {
            l->p += 2;
            l->line++;
        } else {
            l->p++;
        }
    }
}

static void skip_string(struct host_lexer *l)
{
    char quote = *l->p++;
    while (*l->p && *l->p != quote && *l->p != '\n')
        l->p += l->p[0] == '\\' && l->p[1] && l->p[1] != '\n' ? 2 : 1;
    l->p += *l->p == quote;
}

// R"x( ... )x"
static void skip_raw_string(struct host_lexer *l)
{
    const char *name = l->p + 2;
    size_t n = strcspn(name, "(\n");
    l->p = name + n;
    while (*l->p && !(l->p[0] == ')' && strncmp(l->p + 1, name, n) == 0 && l->p[1 + n] == '"'))
        advance(l);
    l->p += *l->p ? n + 2 : 0;
}

struct host_token host_lex(struct host_lexer *l)
{
    skip_blanks(l);
    struct host_token t = { HOST_SIGN, l->p, 0, l->line };
    bool fresh = l->fresh;
    l->fresh = false;
    if (!*l->p) {
        t.kind = HOST_END;
    } else if (*l->p == '#' && fresh) {
        t.kind = HOST_DIRECTIVE;
        skip_directive(l);
    } else if (l->p[0] == 'R' && l->p[1] == '"') {
        t.kind = HOST_STRING;
        skip_raw_string(l);
    } else if (is_word(*l->p)) {
        t.kind = HOST_WORD;
        // A quote between digits belongs to the number.
        bool number = isdigit((unsigned char)*l->p);
        while (is_word(*l->p) || (number && *l->p == '\'' && is_word(l->p[1])))
            l->p++;
    } else if (*l->p == '"' || *l->p == '\'') {
        t.kind = HOST_STRING;
        skip_string(l);
    } else if (strncmp(l->p, "<<<", 3) == 0 || strncmp(l->p, "::", 2) == 0) {
        l->p += *l->p == '<' ? 3 : 2;
    } else {
        l->p++;
    }
    t.size = (size_t)(l->p - t.at);
    return t;
}

bool host_lex_line(const struct host_token *directive, int *out_line, const char **out_file,
                   size_t *out_size)
{
    struct host_lexer l = { directive->at + 1, 1, false };
    struct host_token word = host_lex(&l), number = host_lex(&l), file = host_lex(&l);
    const char *end = directive->at + directive->size;
    if (!host_token_is(&word, "line") || number.at >= end || !isdigit((unsigned char)*number.at))
        return false;
    const long line = strtol(number.at, NULL, 10), most = 1 << 30; // lines are counted on from it
    *out_line = (int)(line < most ? line : most);
    bool named = file.kind == HOST_STRING && file.at < end && file.size >= 2;
    *out_file = named ? file.at + 1 : NULL;
    *out_size = named ? file.size - 2 : 0;
    return true;
}

bool host_token_starts(const struct host_token *t, const char *text)
{
    return t->size >= strlen(text) && memcmp(t->at, text, strlen(text)) == 0;
}

bool host_token_is(const struct host_token *t, const char *text)
{
    return t->size == strlen(text) && memcmp(t->at, text, t->size) == 0;
}
