#include "compiler/host_unit.h"

#include <stdlib.h>
#include <string.h>

enum { PART = 3 };

// The piece that is being read.
struct reader {
    struct host_unit *unit;
    struct host_piece piece;
    int braces, parens, angles, namespaces;
    bool opens_namespace; // the next brace does
    bool ends_late;       // at a semicolon: what has braces is no function
    bool has_value;       // behind `=` nothing is declared
    bool whole;           // ends with the bracket
    bool names_operator;  // by signs that mean nothing else
};

bool host_token_is_any(const struct host_token *t, const char *const *words)
{
    for (; *words; words++)
        if (host_token_is(t, *words))
            return true;
    return false;
}

static int compare(const void *a, const void *b)
{
    const struct host_token *x = a, *y = b;
    return x->size != y->size ? (x->size < y->size ? -1 : 1) : memcmp(x->at, y->at, x->size);
}

static void declare(struct host_unit *u, const struct host_token *word)
{
    const struct host_name name = { *word, HOST_COUNT(u->pieces, struct host_piece), false };
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
    p->values |= host_token_is(t, "enum");
    r->names_operator &= !host_token_is(t, "(");
    r->names_operator |= host_token_is(t, "operator");
    bool value = host_token_is(t, "=") && !r->names_operator;
    r->ends_late |= type || value || host_token_is(t, "typedef");
    r->has_value |= value;
    r->opens_namespace |= host_token_is(t, "namespace") ||
                          (host_token_is(t, "extern") && t[1].kind == HOST_STRING);
    r->opens_namespace &= !host_token_is(t, "("); // extern "C" of one function
    p->kernel |= host_token_is(t, "__global__");
    p->device |= says_device(t);
    p->reached |= HOST_IS_ANY(t, "operator", "__attribute__"); // a constructor runs by itself
    p->function |= host_token_is(t, "(") && !r->has_value;
    if (t->kind == HOST_WORD && !host_token_is(t, "template") && !r->has_value &&
        HOST_IS_ANY(t + 1, "(", "{", "=", ";", ":", "[", ",", "<", "final"))
        declare(r->unit, t);
}

static void follow_brackets(struct reader *r, const struct host_token *t)
{
    bool inside = r->braces > 0;
    if (!inside && !r->has_value && !r->names_operator && r->parens == 0)
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

// Of one word in the order of the text, macros first.
static int compare_names(const void *a, const void *b)
{
    const struct host_name *x = a, *y = b;
    int order = compare(a, b);
    return order ? order : (x->piece > y->piece) - (x->piece < y->piece);
}

static void sort(struct host_unit *u, size_t n)
{
    if (n > 0)
        qsort(u->names.bytes, n, sizeof(struct host_name), compare_names);
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

// Whether the word is a macro of whole declarations, which no semicolon need follow.
static bool is_whole(const struct host_unit *u, const struct host_token *word)
{
    const struct host_name *end = HOST_AT(u->names, struct host_name, u->n_macros),
                           *name = find(u, word, u->n_macros);
    for (; name && name < end && compare(name, word) == 0; name++) {
        const struct host_piece *p = HOST_AT(u->pieces, struct host_piece, name->piece);
        for (size_t k = p->first; k < p->end; k++)
            if (host_token_is(HOST_AT(u->tokens, struct host_token, k), ";"))
                return true;
    }
    return false;
}

// Of the conditions around a line.
struct branches {
    int depth, other; // open #if; that of which another branch is read than what is to be, or 0
    bool second;      // of that one it is the second
};

// "#if defined(X) && ..." or "#ifdef X" of what is defined by other compilers than CUDA's.
static bool is_elsewhere(struct host_lexer l, const struct host_token *directive)
{
    struct host_token word = host_lex(&l);
    if (host_token_is(&word, "defined"))
        word = host_lex(&l);
    if (host_token_is(&word, "("))
        word = host_lex(&l);
    if (!HOST_IS_ANY(&word, "_WIN32", "_MSC_VER", "USE_ROCM", "__HIPCC__", "__HIP__",
                     "__HIP_PLATFORM_AMD__", "__HIP_PLATFORM_HCC__"))
        return false;
    int depth = 0;
    for (const char *c = word.at; c < directive->at + directive->size; c++) {
        depth += (*c == '(') - (*c == ')' && depth > 0);
        if (depth == 0 && strncmp(c, "||", 2) == 0)
            return false;
    }
    return true;
}

static void follow_branch(struct branches *b, const struct host_token *directive)
{
    struct host_lexer l = { directive->at + 1, 1, false };
    struct host_token word = host_lex(&l);
    b->depth += host_token_starts(&word, "if");
    if (host_token_is(&word, "if") || host_token_is(&word, "ifdef")) {
        b->second = b->other ? b->second : is_elsewhere(l, directive);
        b->other = b->other == 0 && b->second ? b->depth : b->other;
    } else if (host_token_starts(&word, "el") && b->other == b->depth && b->second) {
        b->other = 0;
        b->second = false;
    } else if (host_token_starts(&word, "el") && b->other == 0) {
        b->other = b->depth;
    }
    if (!host_token_is(&word, "endif"))
        return;
    bool ends = b->other == b->depth;
    b->other = ends ? 0 : b->other;
    b->second = b->second && !ends;
    b->depth--;
}

// A bool of each token: it is read over. FIRST: all branches of an #if but the first are, or but
// the second where the first is another compiler's.
static size_t read_tokens(struct host_unit *u, const char *text, bool first, struct buf *over)
{
    struct host_lexer l = { text, 1, true };
    struct branches branches = { 0 };
    struct host_token t;
    size_t begin = HOST_COUNT(u->tokens, t);
    do {
        t = host_lex(&l);
        if (t.kind == HOST_DIRECTIVE) {
            follow_branch(&branches, &t);
            continue;
        }
        buf_append(&u->tokens, &t, sizeof t);
        buf_append(over, &(bool){ first && branches.other > 0 }, sizeof(bool));
    } while (t.kind != HOST_END);
    return begin;
}

static void read(struct host_unit *u, const char *text, bool first)
{
    struct buf over = { 0 };
    size_t begin = read_tokens(u, text, first, &over), n = HOST_COUNT(over, bool) - 1;
    struct reader r = { .unit = u, .piece.first = begin };
    for (size_t k = 0; k < n; k++) {
        const struct host_token *at = HOST_AT(u->tokens, struct host_token, begin + k);
        bool is_over = *HOST_AT(over, bool, k);
        if (is_over && r.piece.first == begin + k)
            r.piece.device = true; // stays
        if (is_over && r.piece.device && !*HOST_AT(over, bool, k + 1) && !r.piece.function)
            end_piece(&r, begin + k + 1);
        if (is_over)
            continue;
        if (r.braces == 0 && r.parens == 0 && r.angles == 0)
            read_head(&r, at);
        follow_brackets(&r, at);
        bool brace = HOST_IS_ANY(at, "{", "}") && (!r.ends_late || r.opens_namespace);
        if (r.piece.first == begin + k && host_token_is(at + 1, "("))
            r.whole = is_whole(u, at);
        brace |= r.whole && host_token_is(at, ")") && !host_token_is(at + 1, ";");
        if (r.braces == 0 && r.parens == 0 && (brace || host_token_is(at, ";")))
            end_piece(&r, begin + k + 1);
    }
    u->unclear |= r.braces != 0 || r.parens != 0 || r.namespaces != 0;
    end_piece(&r, begin + n);
    buf_finish(&over);
}

void host_unit_read(struct host_unit *u, const char *text)
{
    sort(u, u->n_macros);
    const struct host_unit was = *u;
    read(u, text, false);
    if (!u->unclear || was.unclear)
        return;
    u->tokens.size = was.tokens.size;
    u->pieces.size = was.pieces.size;
    u->names.size = was.names.size;
    u->unclear = false;
    u->partly = true;
    read(u, text, true);
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

// A macro that stands where a declaration does may declare anything, by a name that it puts
// together or that nobody has to spell; for the device if it says so.
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
        p->reached = true;
    }
}

static bool uses_std(const struct host_unit *u)
{
    size_t n = HOST_COUNT(u->tokens, struct host_token);
    const struct host_token *t = HOST_AT(u->tokens, struct host_token, 0);
    for (size_t i = 0; i + 2 < n; i++)
        if (host_token_is(&t[i], "using") && host_token_is(&t[i + 1], "namespace") &&
            host_token_is(&t[i + 2], "std"))
            return true;
    return false;
}

void host_unit_link(struct host_unit *u)
{
    u->uses_std = uses_std(u);
    declare_by_macros(u);
    sort(u, HOST_COUNT(u->names, struct host_name));
}

bool host_unit_reach(struct host_unit *u, const struct host_token *word)
{
    size_t n = HOST_COUNT(u->names, struct host_name);
    const struct host_name *end = HOST_AT(u->names, struct host_name, n);
    struct host_name *name = find(u, word, n);
    bool found = false;
    if (!name || name->reached)
        return false;
    name->reached = true;
    for (; name < end && compare(name, word) == 0; name++) {
        struct host_piece *p = HOST_AT(u->pieces, struct host_piece, name->piece);
        found |= !p->reached;
        p->reached = true;
    }
    return found;
}

bool host_unit_reach_part(struct host_unit *u, const struct host_token *word, bool begins)
{
    bool found = false;
    for (size_t i = 0; word->size >= PART && i < HOST_COUNT(u->names, struct host_name); i++) {
        const struct host_name *name = HOST_AT(u->names, struct host_name, i);
        if (name->word.size <= word->size)
            continue;
        const char *at = name->word.at + (begins ? 0 : name->word.size - word->size);
        if (memcmp(at, word->at, word->size) == 0)
            found |= host_unit_reach(u, &name->word);
    }
    return found;
}

const struct host_piece *host_unit_type(const struct host_unit *u, const struct host_token *name)
{
    size_t n = HOST_COUNT(u->names, struct host_name);
    const struct host_name *end = HOST_AT(u->names, struct host_name, n), *at = find(u, name, n);
    for (; at && at < end && compare(at, name) == 0; at++) {
        const struct host_piece *p = HOST_AT(u->pieces, struct host_piece, at->piece);
        if (p->type && p->body)
            return p;
    }
    return NULL;
}

const struct host_piece *host_unit_macro(const struct host_unit *u, const struct host_token *name)
{
    const struct host_name *at = find(u, name, HOST_COUNT(u->names, struct host_name));
    const struct host_piece *p = at ? HOST_AT(u->pieces, struct host_piece, at->piece) : NULL;
    return p && p->macro ? p : NULL;
}

void host_unit_finish(struct host_unit *u)
{
    buf_finish(&u->tokens);
    buf_finish(&u->pieces);
    buf_finish(&u->names);
}
