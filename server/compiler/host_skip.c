#include "compiler/host_skip.h"

#include <ctype.h>
#include <string.h>

#include "compiler/host_unit.h"

// Words that stand in no code of a device. Of C++'s library the containers, and what prints.
static bool is_hosts(const struct host_unit *u, const struct host_token *t,
                     const struct host_token *last)
{
    static const char *const starts[] = { "TORCH_",   "AT_DISPATCH_", "AT_ASSERT", "AT_ERROR",
                                          "AT_CHECK", "AT_CUDA_",     "PYBIND11_", "C10_CUDA_",
                                          "THC",      "THArgCheck",   "cublas",    "cudnn",
                                          "cusparse" };
    static const char *const devices[] = { "cudaTextureObject_t", "cudaSurfaceObject_t", NULL };
    if (t->kind == HOST_STRING)
        return false;
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (host_token_starts(t, starts[i]))
            return true;
    static const char *const library[] = {
        "vector",  "string",     "cout",          "cerr",         "unique_ptr",    "shared_ptr",
        "map",     "deque",      "unordered_map", "list",         "runtime_error", "mutex",
        "set",     "lock_guard", "once_flag",     "stringstream", "ostringstream", "ifstream",
        "ostream", "function",   "to_string",     "thread",       "future",        "chrono",
        "istream", NULL
    };
    if (host_token_is(last, "::") && host_token_is_any(t, library))
        return true;
    if (u->uses_std && host_token_is(t + 1, "<") &&
        HOST_IS_ANY(t, "vector", "map", "unordered_map", "unique_ptr", "shared_ptr"))
        return true;
    return HOST_IS_ANY(t, "<<<", "Tensor", "TensorList", "TensorOptions", "__host__", "timespec") ||
           (host_token_starts(t, "cuda") && t->size > 4 && isupper((unsigned char)t->at[4]) &&
            !host_token_is_any(t, devices));
}

// The same of what is called; a kernel of the CPU may declare such a function, and call it.
static bool is_hosts_call(const struct host_token *t)
{
    return HOST_IS_ANY(t, "fprintf", "main", "exit", "getenv") && host_token_is(t + 1, "(");
}

// Whether the file has that type itself, or the one that it is of.
static bool is_own(const struct host_unit *u, const struct host_piece *p, size_t i)
{
    const struct host_token *t = HOST_AT(u->tokens, struct host_token, i);
    return host_unit_type(u, t) ||
           (i > p->first + 1 && host_token_is(t - 1, "::") && host_unit_type(u, t - 2));
}

// A type with a function of the device's in it is not the host's, nor is what the file has itself.
static bool has_hosts(const struct host_unit *u, const struct host_piece *p)
{
    static const struct host_token none = { 0 };
    const struct host_token *last = &none;
    bool hosts = false, device = false;
    for (size_t i = p->first; i < p->end; i++) {
        const struct host_token *t = HOST_AT(u->tokens, struct host_token, i);
        hosts |= (is_hosts(u, t, last) && !is_own(u, p, i)) ||
                 ((p->body || p->macro) && is_hosts_call(t));
        const struct host_piece *macro = p->type ? host_unit_macro(u, t) : NULL;
        device |= p->type && (host_token_is(t, "__device__") || (macro && macro->device));
        last = t;
    }
    return hosts && !device;
}

// A use of a macro that makes no code of the device's, but orders templates of the host's.
static bool orders_hosts(const struct host_unit *u, const struct host_token *word)
{
    const struct host_piece *macro = host_unit_macro(u, word);
    if (!macro || macro->device)
        return false;
    const struct host_token *t = HOST_AT(u->tokens, struct host_token, macro->first);
    size_t n = macro->end - macro->first;
    for (size_t i = 0; i + 1 < n; i++) // behind its parameters
        if (host_token_is(&t[i], "template") && !host_token_is(&t[i + 1], "<"))
            return true;
    return has_hosts(u, macro);
}

// What may go where nothing names it: functions, types, names for namespaces, and orders to
// instantiate.
static bool is_optional(const struct host_unit *u, const struct host_piece *p)
{
    const struct host_token *t = HOST_AT(u->tokens, struct host_token, p->first);
    if (p->macro)
        return true;
    if (p->device || p->first == p->end || host_token_is(t, "static_assert"))
        return false;
    const struct host_token *last = &t[p->end - p->first - 1];
    if (host_token_is(t, "template") && !host_token_is(&t[1], "<"))
        return true;
    if (host_token_is(t, "namespace"))
        return host_token_is(last, ";");
    if (p->type)
        return p->body && !p->values;
    return p->function;
}

// Of a piece.
struct fate {
    bool host;     // goes, whoever names it
    bool optional; // goes where nobody does
    bool followed;
};

static struct fate judge(const struct host_unit *u, const struct host_piece *p)
{
    const struct host_token *t = HOST_AT(u->tokens, struct host_token, p->first);
    bool optional = is_optional(u, p), hosts = !p->macro && !p->device && p->first < p->end &&
                                               (has_hosts(u, p) || orders_hosts(u, t));
    return (struct fate){ .host = optional && hosts, .optional = optional || hosts };
}

static bool is_kept(const struct host_piece *p, const struct fate *fate)
{
    return !fate->host && (p->reached || !fate->optional);
}

static bool is_pasted(const struct host_token *t)
{
    return host_token_is(t, "#") && host_token_is(t + 1, "#");
}

static bool follow(struct host_unit *u, const struct host_piece *p)
{
    bool more = false;
    for (size_t i = p->first; i < p->end; i++) {
        const struct host_token *t = HOST_AT(u->tokens, struct host_token, i);
        more |= host_unit_reach(u, t);
        if (i > p->first && i + 2 < p->end && is_pasted(t))
            more |= host_unit_reach_part(u, t - 1, true) | host_unit_reach_part(u, t + 2, false);
    }
    return more;
}

// A struct fate of each piece.
static void judge_all(struct host_unit *u, struct buf *fates)
{
    size_t n = HOST_COUNT(u->pieces, struct host_piece);
    for (size_t i = 0; i < n; i++) {
        struct fate fate = judge(u, HOST_AT(u->pieces, struct host_piece, i));
        buf_append(fates, &fate, sizeof fate);
    }
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < n; i++) {
            const struct host_piece *p = HOST_AT(u->pieces, struct host_piece, i);
            struct fate *fate = HOST_AT(*fates, struct fate, i);
            if (fate->followed || !is_kept(p, fate))
                continue;
            fate->followed = true;
            more |= follow(u, p);
        }
    }
}

static bool is_pragma(const struct host_token *directive)
{
    struct host_lexer l = { directive->at + 1, 1, false };
    struct host_token word = host_lex(&l);
    return host_token_is(&word, "pragma");
}

// Line ends stay, and directives but those that are about the code that goes.
static void append_blanks(const char *at, const char *end, struct buf *out)
{
    struct host_lexer l = { at, 1, true };
    for (struct host_token t = host_lex(&l); at < end; t = host_lex(&l)) {
        for (; at < t.at && at < end; at++)
            buf_append(out, *at == '\n' ? "\n" : " ", 1);
        bool stays = t.kind == HOST_DIRECTIVE && !is_pragma(&t);
        for (; at < t.at + t.size && at < end; at++)
            buf_append(out, stays || *at == '\n' ? at : " ", 1);
    }
}

static void reach_all(struct host_unit *u, const char *text)
{
    struct host_lexer l = { text, 1, true };
    for (struct host_token t; (t = host_lex(&l)).kind != HOST_END;)
        host_unit_reach(u, &t);
}

// "[=] __device__ (": what NVRTC takes without these words alone. Blanks stand in their place.
static void bare_lambdas(char *text)
{
    struct host_lexer l = { text, 1, true };
    struct host_token last = { 0 }, before = { 0 };
    for (struct host_token t = host_lex(&l); t.kind != HOST_END;
         before = last, last = t, t = host_lex(&l)) {
        struct host_lexer ahead = l;
        struct host_token next = t;
        if (!host_token_is(&last, "]") || host_token_is(&before, "]")) // [[nodiscard]]
            continue;
        while (HOST_IS_ANY(&next, "__device__", "__host__", "__forceinline__"))
            next = host_lex(&ahead);
        if (next.at > t.at && HOST_IS_ANY(&next, "(", "{"))
            for (char *c = text + (t.at - text); c < next.at; c++)
                *c = isspace((unsigned char)*c) ? *c : ' ';
    }
}

void host_skip(const struct compile_input *in, struct buf *out)
{
    const char *source = in->source;
    size_t begin = out->size;
    struct host_unit u = { 0 };
    struct buf fates = { 0 };
    const char *done = source;
    host_unit_read_macros(&u, source, NULL);
    host_unit_read(&u, source);
    host_unit_link(&u);
    reach_all(&u, compile_behind(in));
    reach_all(&u, in->expr);
    reach_all(&u, "begin end"); // of a loop over a range
    for (int i = 0; i < in->n_more; i++)
        reach_all(&u, in->more[i]);
    if (!u.unclear)
        judge_all(&u, &fates);
    for (size_t i = 0; i < HOST_COUNT(fates, struct fate); i++) {
        const struct host_piece *p = HOST_AT(u.pieces, struct host_piece, i);
        if (p->macro || p->first == p->end || is_kept(p, HOST_AT(fates, struct fate, i)))
            continue;
        const char *at = HOST_AT(u.tokens, struct host_token, p->first)->at;
        const struct host_token *last = HOST_AT(u.tokens, struct host_token, p->end - 1);
        buf_append(out, done, (size_t)(at - done));
        append_blanks(at, last->at + last->size, out);
        done = last->at + last->size;
    }
    buf_append_str(out, done);
    buf_str(out); // terminated, for the lexer
    bare_lambdas((char *)out->bytes + begin);
    buf_finish(&fates);
    host_unit_finish(&u);
}
