#include "compiler/host_cond.h"

#include <stdlib.h>
#include <string.h>

struct value {
    bool known;
    long long v;
};

struct parser {
    struct host_lexer lexer;
    struct host_token token;
};

// The macros whose presence decides what is for the GPU and what for the CPU; of others nothing is
// known.
static const struct {
    const char *name;
    bool defined;
    long long value;
} known_macros[] = {
    { "OPD_CPU", true, 1 },        { "__CUDACC__", true, 1 },       { "__CUDACC_RTC__", true, 1 },
    { "__CUDA_ARCH__", false, 0 }, { "__cplusplus", true, 201703 }, { "__NVCC__", false, 0 },
};

static const struct value unknown = { false, 0 };

static struct value make_known(long long v)
{
    return (struct value){ true, v };
}

static struct value find_macro(const struct host_token *t, bool want_defined)
{
    for (size_t i = 0; i < sizeof known_macros / sizeof *known_macros; i++)
        if (host_token_is(t, known_macros[i].name))
            return make_known(want_defined ? known_macros[i].defined : known_macros[i].value);
    return unknown;
}

static void step(struct parser *p)
{
    p->token = host_lex(&p->lexer);
}

static bool accept(struct parser *p, const char *text)
{
    if (!host_token_is(&p->token, text))
        return false;
    step(p);
    return true;
}

static struct value read_or(struct parser *p, int depth);

static struct value read_unary(struct parser *p, int depth)
{
    struct value v = unknown;
    if (accept(p, "!")) {
        v = depth < 32 ? read_unary(p, depth + 1) : unknown;
        v.v = !v.v;
    } else if (accept(p, "(")) {
        v = depth < 32 ? read_or(p, depth + 1) : unknown;
        if (!accept(p, ")"))
            v = unknown;
    } else if (accept(p, "defined")) {
        bool open = accept(p, "(");
        v = find_macro(&p->token, true);
        step(p);
        if (open && !accept(p, ")"))
            v = unknown;
    } else if (p->token.kind == HOST_WORD) {
        if (p->token.at[0] >= '0' && p->token.at[0] <= '9')
            v = make_known(strtoll(p->token.at, NULL, 0));
        else
            v = find_macro(&p->token, false);
        step(p);
    }
    return v;
}

static struct value read_comparison(struct parser *p, int depth)
{
    static const char *const words[] = { "==", "!=", "<=", ">=", "<", ">" };
    struct value a = read_unary(p, depth);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i]);
        if (p->token.kind == HOST_END || strncmp(p->token.at, words[i], n) != 0)
            continue;
        for (size_t k = 0; k < n; k++)
            step(p);
        struct value b = read_unary(p, depth);
        const bool results[] = { a.v == b.v, a.v != b.v, a.v <= b.v, a.v >= b.v,
                                 a.v<b.v, a.v> b.v };
        return a.known && b.known ? make_known(results[i]) : unknown;
    }
    return a;
}

static bool accept_twice(struct parser *p, char c)
{
    if (p->token.kind != HOST_SIGN || p->token.at[0] != c || p->token.at[1] != c)
        return false;
    step(p);
    step(p);
    return true;
}

static struct value read_and(struct parser *p, int depth)
{
    struct value a = read_comparison(p, depth);
    while (accept_twice(p, '&')) {
        struct value b = read_comparison(p, depth);
        bool no = (a.known && !a.v) || (b.known && !b.v);
        a = no ? make_known(0) : a.known && b.known ? make_known(1) : unknown;
    }
    return a;
}

static struct value read_or(struct parser *p, int depth)
{
    struct value a = read_and(p, depth);
    while (accept_twice(p, '|')) {
        struct value b = read_and(p, depth);
        bool yes = (a.known && a.v) || (b.known && b.v);
        a = yes ? make_known(1) : a.known && b.known ? make_known(0) : unknown;
    }
    return a;
}

static enum host_truth judge(struct value v)
{
    return !v.known ? HOST_MAYBE : v.v ? HOST_YES : HOST_NO;
}

// Reads the condition of a copy of the line, cut off from what follows it.
static enum host_truth read_condition(const char *text, size_t size, bool whole)
{
    char line[1024];
    if (size >= sizeof line)
        return HOST_MAYBE;
    memcpy(line, text, size);
    line[size] = '\0';
    struct parser p = { .lexer = { line, 1, false } };
    step(&p);
    struct value v = whole ? read_or(&p, 0) : find_macro(&p.token, true);
    if (whole && p.token.kind != HOST_END)
        v = unknown;
    return judge(v);
}

static enum host_truth invert(enum host_truth t)
{
    return (enum host_truth)(HOST_YES - t);
}

static void branch(struct host_cond *c, enum host_truth condition)
{
    if (c->depth == 0 || c->depth > HOST_COND_DEPTH)
        return;
    enum host_truth before = c->level[c->depth - 1].taken, active = condition;
    if (invert(before) < active)
        active = invert(before);
    c->level[c->depth - 1].active = active;
    if (active > before)
        c->level[c->depth - 1].taken = active;
}

static void open_level(struct host_cond *c, enum host_truth condition)
{
    if (c->depth < HOST_COND_DEPTH)
        c->level[c->depth].taken = HOST_NO;
    c->depth++;
    branch(c, condition);
}

void host_cond_step(struct host_cond *c, const struct host_token *directive)
{
    struct host_lexer l = { directive->at + 1, directive->line, false };
    struct host_token word = host_lex(&l);
    const char *rest = word.at + word.size, *end = directive->at + directive->size;
    size_t size = rest < end ? (size_t)(end - rest) : 0;
    if (host_token_is(&word, "if"))
        open_level(c, read_condition(rest, size, true));
    else if (host_token_is(&word, "ifdef"))
        open_level(c, read_condition(rest, size, false));
    else if (host_token_is(&word, "ifndef"))
        open_level(c, invert(read_condition(rest, size, false)));
    else if (host_token_is(&word, "elif"))
        branch(c, read_condition(rest, size, true));
    else if (host_token_is(&word, "else"))
        branch(c, HOST_YES);
    else if (host_token_is(&word, "endif") && c->depth > 0)
        c->depth--;
}

bool host_cond_active(const struct host_cond *c)
{
    if (c->depth > HOST_COND_DEPTH)
        return false;
    for (int i = 0; i < c->depth; i++)
        if (c->level[i].active != HOST_YES)
            return false;
    return true;
}
