#include "compiler/host_unit.h"

#include <stdlib.h>
#include <string.h>

// The piece that is being read.
struct reader {
    struct host_unit *unit;
    struct host_piece piece;
    int braces, parens, angles, namespaces;
    bool opens_namespace; // the next brace does
    bool ends_late;       // at a semicolon: what has braces is no function
    bool has_value;       // behind `=` nothing is declared
};

bool host_token_is_any(const struct host_token *t, const char *const *words)
{
    for (; *words; words++)
        if (host_token_is(t, *words))
            return true;
    return false;
}

static void declare(struct host_unit *u, const struct host_token *word)
{
    const struct host_name name = { *word, HOST_COUNT(u->pieces, struct host_piece) };
    buf_append(&u->names, &name, sizeof name);
}

static void end_piece(struct reader *r, size_t end)
{
    r->piece.end = end;
    buf_append(&r->unit->pieces, &r->piece, sizeof r->piece);
    *r = (struct reader){ .unit = r->unit, .piece.first = end, .namespaces = r->namespaces };
}

static bool says_device(const struct host_token *t)
{
    return HOST_IS_ANY(t, "__global__", "__device__", "__constant__", "__shared__",
                       "__managed__") ||
           memmem(t->at, t->size, "DEVICE", strlen("DEVICE"));
}

// Outside of all brackets. What is declared there the sign behind it tells; an operator is named by
// nobody who uses it.
static void read_head(struct reader *r, const struct host_token *t)
{
    struct host_piece *p = &r->piece;
    bool type = HOST_IS_ANY(t, "struct", "class", "union", "enum");
    p->type |= type && !p->function;
    r->ends_late |= type || HOST_IS_ANY(t, "typedef", "=");
    r->has_value |= host_token_is(t, "=");
    r->opens_namespace |= host_token_is(t, "namespace") ||
                          (host_token_is(t, "extern") && t[1].kind == HOST_STRING);
    r->opens_namespace &= !host_token_is(t, "("); // extern "C" of one function
    p->kernel |= host_token_is(t, "__global__");
    p->device |= says_device(t);
    p->reached |= host_token_is(t, "operator");
    p->function |= host_token_is(t, "(") && !r->has_value;
    if (t->kind == HOST_WORD && !host_token_is(t, "template") && !r->has_value &&
        HOST_IS_ANY(t + 1, "(", "{", "=", ";", ":", "[", ",", "<"))
        declare(r->unit, t);
}

static void follow_brackets(struct reader *r, const struct host_token *t)
{
    bool inside = r->braces > 0;
    if (!inside && !r->has_value && r->parens == 0)
        r->angles += host_token_is(t, "<") ? 1 : host_token_is(t, ">") && r->angles > 0 ? -1 : 0;
    if (!inside)
        r->parens += host_token_is(t, "(") ? 1 : host_token_is(t, ")") ? -1 : 0;
    if (r->parens > 0)
        return;
    if (host_token_is(t, "{") && r->opens_namespace)
        r->namespaces++;
    else if (host_token_is(t, "{"))
        r->braces++;
    else if (host_token_is(t, "}") && inside)
        r->braces--;
    else if (host_token_is(t, "}") && r->namespaces-- == 0)
        r->unit->unclear = true;
    r->piece.body |= r->braces > 0;
}

void host_unit_read(struct host_unit *u, const char *text)
{
    struct host_lexer l = { text, 1, true };
    struct host_token t;
    size_t first = HOST_COUNT(u->tokens, t);
    struct reader r = { .unit = u, .piece.first = first };
    do {
        t = host_lex(&l);
        if (t.kind != HOST_DIRECTIVE)
            buf_append(&u->tokens, &t, sizeof t);
    } while (t.kind != HOST_END);
    size_t end = HOST_COUNT(u->tokens, t) - 1;
    for (size_t i = first; i < end; i++) {
        const struct host_token *at = HOST_AT(u->tokens, struct host_token, i);
        if (r.braces == 0 && r.parens == 0 && r.angles == 0)
            read_head(&r, at);
        follow_brackets(&r, at);
        bool brace = HOST_IS_ANY(at, "{", "}") && (!r.ends_late || r.opens_namespace);
        if (r.braces == 0 && r.parens == 0 && (brace || host_token_is(at, ";")))
            end_piece(&r, i + 1);
    }
    u->unclear |= r.braces != 0 || r.parens != 0 || r.namespaces != 0;
    end_piece(&r, end);
}

void host_unit_read_macros(struct host_unit *u, const char *text, const char *const *passed)
{
    struct host_lexer l = { text, 1, true };
    for (struct host_token t; (t = host_lex(&l)).kind != HOST_END;) {
        if (t.kind != HOST_DIRECTIVE)
            continue;
        struct host_lexer inner = { t.at + 1, 1, false };
        struct host_token word = host_lex(&inner), name = host_lex(&inner);
        u->includes |= host_token_is(&word, "include") && name.kind == HOST_STRING;
        if (!host_token_is(&word, "define") || (passed && host_token_is_any(&name, passed)))
            continue;
        struct host_piece piece = { .first = HOST_COUNT(u->tokens, t), .macro = true };
        declare(u, &name);
        while ((word = host_lex(&inner)).kind != HOST_END && word.at < t.at + t.size) {
            buf_append(&u->tokens, &word, sizeof word);
            piece.device |= says_device(&word);
        }
        piece.end = HOST_COUNT(u->tokens, t);
        buf_append(&u->pieces, &piece, sizeof piece);
    }
    u->n_macros = HOST_COUNT(u->names, struct host_name);
}

static int compare(const void *a, const void *b)
{
    const struct host_token *x = a, *y = b;
    return x->size != y->size ? (x->size < y->size ? -1 : 1) : memcmp(x->at, y->at, x->size);
}

// The first of that word, of n names in order. NULL: there is none.
static struct host_name *find(const struct host_unit *u, const struct host_token *word, size_t n)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare(HOST_AT(u->names, struct host_name, middle), word) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    struct host_name *at = HOST_AT(u->names, struct host_name, low);
    return low < n && compare(at, word) == 0 ? at : NULL;
}

// A macro that stands where a declaration does may declare whatever it is given, for the device if
// it says so.
static void declare_by_macros(struct host_unit *u)
{
    size_t n = HOST_COUNT(u->names, struct host_name);
    for (size_t i = u->n_macros; i < n; i++) {
        const struct host_name name = *HOST_AT(u->names, struct host_name, i);
        const struct host_name *macro = find(u, &name.word, u->n_macros);
        if (!macro)
            continue;
        struct host_piece *p = HOST_AT(u->pieces, struct host_piece, name.piece);
        p->device |= HOST_AT(u->pieces, struct host_piece, macro->piece)->device;
        for (size_t k = p->first; k < p->end; k++) {
            const struct host_name more = { *HOST_AT(u->tokens, struct host_token, k), name.piece };
            buf_append(&u->names, &more, sizeof more);
        }
    }
}

static void sort(struct host_unit *u, size_t n)
{
    if (n > 0)
        qsort(u->names.bytes, n, sizeof(struct host_name), compare);
}

void host_unit_link(struct host_unit *u)
{
    sort(u, u->n_macros);
    declare_by_macros(u);
    sort(u, HOST_COUNT(u->names, struct host_name));
}

bool host_unit_reach(struct host_unit *u, const struct host_token *word)
{
    size_t n = HOST_COUNT(u->names, struct host_name);
    const struct host_name *end = HOST_AT(u->names, struct host_name, n), *name = find(u, word, n);
    bool found = false;
    for (; name && name < end && compare(name, word) == 0; name++) {
        struct host_piece *p = HOST_AT(u->pieces, struct host_piece, name->piece);
        found |= !p->reached;
        p->reached = true;
    }
    return found;
}

void host_unit_finish(struct host_unit *u)
{
    buf_finish(&u->tokens);
    buf_finish(&u->pieces);
    buf_finish(&u->names);
}
