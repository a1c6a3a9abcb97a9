#include "compiler/host_loop.h"

#include <string.h>

#include "base/mem.h"
#include "compiler/host_lex.h"

// A declaration at the level of namespaces, or a #define: its tokens.
struct piece {
    size_t first, end;
    bool kernel, reached;
};

struct name {
    struct host_token word;
    size_t piece; // that declares it
};

// The translation unit, in pieces as far as brackets tell them.
struct unit {
    struct buf tokens, pieces, names; // of struct host_token, piece, name
    size_t n_macros;                  // of the names: these come first
    bool unclear;
};

// The piece that is being read.
struct reader {
    struct unit *unit;
    struct piece piece;
    int braces, parens, angles, namespaces;
    bool opens_namespace; // the next brace does
    bool ends_late;       // at a semicolon: what has braces is no function
    bool has_value;       // behind `=` nothing is declared
};

#define COUNT(buf, type) ((buf).size / sizeof(type))
#define AT(buf, type, i) ((type *)(void *)(buf).bytes + (i))

static bool is_any(const struct host_token *t, const char *const *words)
{
    for (; *words; words++)
        if (host_token_is(t, *words))
            return true;
    return false;
}
#define IS_ANY(t, ...) is_any(t, (const char *const[]){ __VA_ARGS__, NULL })

static bool is_kernel_loop(const struct host_token *t)
{
    return IS_ANY(t, "CUDA_KERNEL_LOOP", "CUDA_1D_KERNEL_LOOP");
}

// What tells the threads of a block apart, or counts them, or may hide either. How often a maximum
// is taken changes nothing.
static bool tells_threads(const struct host_token *t)
{
    return IS_ANY(t, "threadIdx", "blockIdx", "__shared__", "__activemask", "printf",
                  "gpuAtomicAdd") ||
           host_token_starts(t, "clock") || memmem(t->at, t->size, "sync", strlen("sync")) ||
           (host_token_starts(t, "atomic") &&
            !IS_ANY(t, "atomicMax", "atomicMin", "atomicAnd", "atomicOr")) ||
           (host_token_is(t, "#") && t->at[1] == '#');
}

static void declare(struct unit *u, const struct host_token *word)
{
    const struct name name = { *word, COUNT(u->pieces, struct piece) };
    buf_append(&u->names, &name, sizeof name);
}

static void end_piece(struct reader *r, size_t end)
{
    r->piece.end = end;
    buf_append(&r->unit->pieces, &r->piece, sizeof r->piece);
    *r = (struct reader){ .unit = r->unit, .piece.first = end, .namespaces = r->namespaces };
}

// Outside of all brackets. What is declared there the sign behind it tells; an operator is named by
// nobody who uses it.
static void read_head(struct reader *r, const struct host_token *t)
{
    r->ends_late |= IS_ANY(t, "struct", "class", "union", "enum", "typedef", "=");
    r->has_value |= host_token_is(t, "=");
    r->opens_namespace |= host_token_is(t, "namespace") ||
                          (host_token_is(t, "extern") && t[1].kind == HOST_STRING);
    r->opens_namespace &= !host_token_is(t, "("); // extern "C" of one function
    r->piece.kernel |= host_token_is(t, "__global__");
    r->piece.reached |= host_token_is(t, "operator");
    if (t->kind == HOST_WORD && !host_token_is(t, "template") && !r->has_value &&
        IS_ANY(t + 1, "(", "{", "=", ";", ":", "[", ",", "<"))
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
}

static void read_declarations(struct unit *u, const char *text)
{
    struct host_lexer l = { text, 1, true };
    struct host_token t;
    size_t first = COUNT(u->tokens, t);
    struct reader r = { .unit = u, .piece.first = first };
    do {
        t = host_lex(&l);
        if (t.kind != HOST_DIRECTIVE)
            buf_append(&u->tokens, &t, sizeof t);
    } while (t.kind != HOST_END);
    size_t end = COUNT(u->tokens, t) - 1;
    for (size_t i = first; i < end; i++) {
        const struct host_token *at = AT(u->tokens, struct host_token, i);
        if (r.braces == 0 && r.parens == 0 && r.angles == 0)
            read_head(&r, at);
        follow_brackets(&r, at);
        bool brace = IS_ANY(at, "{", "}") && (!r.ends_late || r.opens_namespace);
        if (r.braces == 0 && r.parens == 0 && (brace || host_token_is(at, ";")))
            end_piece(&r, i + 1);
    }
    u->unclear |= r.braces != 0 || r.parens != 0 || r.namespaces != 0;
    end_piece(&r, end);
}

// `common`: its CUDA_KERNEL_LOOP is the one that is meant.
static void read_macros(struct unit *u, const char *text, bool common)
{
    struct host_lexer l = { text, 1, true };
    for (struct host_token t; (t = host_lex(&l)).kind != HOST_END;) {
        if (t.kind != HOST_DIRECTIVE)
            continue;
        struct host_lexer inner = { t.at + 1, 1, false };
        struct host_token word = host_lex(&inner), name = host_lex(&inner);
        u->unclear |= host_token_is(&word, "include") && name.kind == HOST_STRING;
        if (!host_token_is(&word, "define") || (common && is_kernel_loop(&name)))
            continue;
        struct piece piece = { .first = COUNT(u->tokens, t) };
        declare(u, &name);
        while ((word = host_lex(&inner)).kind != HOST_END && word.at < t.at + t.size)
            buf_append(&u->tokens, &word, sizeof word);
        piece.end = COUNT(u->tokens, t);
        buf_append(&u->pieces, &piece, sizeof piece);
    }
    u->n_macros = COUNT(u->names, struct name);
}

static bool is_same(const struct host_token *a, const struct host_token *b)
{
    return a->size == b->size && memcmp(a->at, b->at, a->size) == 0;
}

// A macro that stands where a declaration does may declare whatever it is given.
static void declare_by_macros(struct unit *u)
{
    for (size_t i = u->n_macros, n = COUNT(u->names, struct name); i < n; i++) {
        const struct name name = *AT(u->names, struct name, i);
        bool is_macro = false;
        for (size_t k = 0; k < u->n_macros && !is_macro; k++)
            is_macro = is_same(&name.word, &AT(u->names, struct name, k)->word);
        const struct piece *p = AT(u->pieces, struct piece, name.piece);
        for (size_t k = p->first; is_macro && k < p->end; k++) {
            const struct name more = { *AT(u->tokens, struct host_token, k), name.piece };
            buf_append(&u->names, &more, sizeof more);
        }
    }
}

static void reach(struct unit *u, const struct host_token *word)
{
    for (size_t i = 0; i < COUNT(u->names, struct name); i++) {
        const struct name *name = AT(u->names, struct name, i);
        if (is_same(&name->word, word))
            AT(u->pieces, struct piece, name->piece)->reached = true;
    }
}

// Follows a piece's words. *loops: of kernels, so far.
static bool follow(struct unit *u, const struct piece *p, int *loops)
{
    bool repeats = false;
    for (size_t i = p->first; i < p->end; i++) {
        const struct host_token *t = AT(u->tokens, struct host_token, i);
        if (tells_threads(t))
            return false;
        repeats |= IS_ANY(t, "for", "while", "do", "goto");
        if (is_kernel_loop(t) && (!p->kernel || repeats || ++*loops > 1))
            return false; // which thread has an index may count in the other loop, or pass
        reach(u, t);
    }
    return true;
}

static bool judge(struct unit *u, const char *expr)
{
    struct host_lexer l = { expr, 1, false };
    for (struct host_token t; (t = host_lex(&l)).kind != HOST_END;)
        reach(u, &t);
    int loops = 0;
    size_t n = COUNT(u->pieces, struct piece);
    struct buf followed = { 0 }; // a bool of each
    bool plain = true, more = true;
    for (size_t i = 0; i < n; i++)
        buf_append(&followed, &(bool){ false }, sizeof(bool));
    while (plain && more) {
        more = false;
        for (size_t i = 0; i < n && plain; i++) {
            bool *done = AT(followed, bool, i);
            const struct piece *p = AT(u->pieces, struct piece, i);
            if (!p->reached || *done)
                continue;
            *done = more = true;
            plain = follow(u, p, &loops);
        }
    }
    buf_finish(&followed);
    return plain && loops == 1;
}

bool host_loop_is_plain(const struct compile_input *in)
{
    const char *const texts[] = { in->common, in->prelude, in->source };
    struct unit u = { 0 };
    if (!strstr(in->source, "KERNEL_LOOP"))
        return false;
    for (int i = 0; i < 3; i++)
        read_macros(&u, texts[i], i == 0);
    for (int i = 0; i < 3; i++)
        read_declarations(&u, texts[i]);
    declare_by_macros(&u);
    bool plain = !u.unclear && judge(&u, in->expr);
    buf_finish(&u.tokens);
    buf_finish(&u.pieces);
    buf_finish(&u.names);
    return plain;
}
