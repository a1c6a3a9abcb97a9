#include "compiler/host_source.h"

#include <string.h>

#include "compiler/field.h"
#include "compiler/host_skip.h"
#include "compiler/host_unit.h"

enum { MAX_BRACES = 256 };

// Where the rewriting is: which of the open braces are of namespaces.
struct scope {
    int depth, n_inner; // open braces; those of them that are no namespace's
    bool inner[MAX_BRACES];
    bool names; // `namespace` or `extern "C"` stands before the next brace
};

static void follow_scope(struct scope *s, const struct host_token *last, const struct host_token *t)
{
    if (host_token_is(t, "namespace") ||
        (t->kind == HOST_STRING && last->at && host_token_is(last, "extern"))) {
        s->names = true;
    } else if (host_token_is(t, ";")) {
        s->names = false;
    } else if (host_token_is(t, "{")) {
        if (s->depth < MAX_BRACES)
            s->inner[s->depth] = !s->names;
        s->n_inner += !s->names;
        s->depth++;
        s->names = false;
    } else if (host_token_is(t, "}") && s->depth > 0) {
        s->depth--;
        s->n_inner -= s->depth >= MAX_BRACES || s->inner[s->depth];
    }
}

// Whether what is read belongs to a function of the device, its declaration included.
struct function {
    struct scope scope;
    bool device;
};

static void follow_function(struct function *f, const struct host_token *last,
                            const struct host_token *t)
{
    follow_scope(&f->scope, last, t);
    if (host_token_is(t, "__global__") || host_token_is(t, "__device__"))
        f->device = true;
    else if (f->scope.n_inner == 0 && (host_token_is(t, ";") || host_token_is(t, "}")))
        f->device = false;
}

// What the source says of its lines, which may come from several files.
struct place {
    const char *file;
    size_t size;
};

static void follow_line(struct host_lexer *l, const struct host_token *t, struct place *place)
{
    int line;
    const char *file;
    size_t size;
    if (t->kind != HOST_DIRECTIVE || !host_lex_line(t, &line, &file, &size))
        return;
    l->line = line - 1;
    if (file)
        *place = (struct place){ file, size };
}

static const char launch_in_kernel[] = "a launch from a kernel (dynamic parallelism)";

// What of a PyTorch extension the header of the file replaces, and launches; those in kernels only
// where they are looked for. NULL: it is none of that.
static const char *find_host_code(const struct host_token *t, bool device, bool in_kernels)
{
    if (host_token_is(t, "<<<"))
        return !device ? "a launch outside of kernels" : in_kernels ? launch_in_kernel : NULL;
    return host_token_is(t, "PYBIND11_MODULE")     ? "PYBIND11_MODULE"
           : host_token_starts(t, "TORCH_LIBRARY") ? "TORCH_LIBRARY"
           : host_token_starts(t, "AT_DISPATCH_")  ? "AT_DISPATCH"
                                                   : NULL;
}

// The name of a macro in whose text a launch stands.
static bool find_macro_launch(const struct host_token *directive, struct host_token *name)
{
    struct host_lexer l = { directive->at + 1, directive->line, false };
    struct host_token t = host_lex(&l);
    if (!host_token_is(&t, "define"))
        return false;
    *name = host_lex(&l);
    while (t.kind != HOST_END && t.at < directive->at + directive->size &&
           !host_token_is(&t, "<<<"))
        t = host_lex(&l);
    name->line = t.line;
    return t.at < directive->at + directive->size && t.kind != HOST_END;
}

// The line of the launch in a macro that the word uses, or 0.
static int find_launcher(const struct buf *launchers, const struct host_token *word)
{
    for (size_t i = 0; i < HOST_COUNT(*launchers, struct host_token); i++) {
        const struct host_token *name = HOST_AT(*launchers, struct host_token, i);
        if (name->size == word->size && memcmp(name->at, word->at, word->size) == 0)
            return name->line;
    }
    return 0;
}

static int count_condition(const struct host_token *directive)
{
    struct host_lexer l = { directive->at + 1, directive->line, false };
    struct host_token word = host_lex(&l);
    return host_token_starts(&word, "if") ? 1 : host_token_is(&word, "endif") ? -1 : 0;
}

static bool find(const char *file, const char *pasted, bool in_kernels, struct opd_err *err)
{
    struct buf text = { 0 }, launchers = { 0 }; // of struct host_token
    const struct compile_input in = { .source = pasted, .prelude = "", .expr = "" };
    host_skip(&in, &text);
    const char *source = buf_str(&text);
    struct place place = { file, strlen(file) };
    struct host_lexer l = { source, 1, true };
    struct function function = { 0 };
    struct host_token last = { 0 }, t;
    const char *what = NULL;
    int conditions = 0;
    while (!what && (t = host_lex(&l)).kind != HOST_END) {
        if (t.kind == HOST_DIRECTIVE) {
            follow_line(&l, &t, &place);
            conditions += count_condition(&t);
            struct host_token name;
            if (in_kernels && conditions == 0 && find_macro_launch(&t, &name))
                buf_append(&launchers, &name, sizeof name);
            continue;
        }
        int launcher = find_launcher(&launchers, &t);
        if (launcher > 0) {
            t.line = launcher;
            what = launch_in_kernel;
            break;
        }
        if (conditions == 0 && t.kind != HOST_STRING)
            what = find_host_code(&t, function.device, in_kernels);
        follow_function(&function, &last, &t);
        last = t;
    }
    if (what)
        opd_err_set(err, OPD_E_compile_error, "%.*s:%d: %s %s", (int)place.size, place.file, t.line,
                    what,
                    what == launch_in_kernel ? HOST_NOT_HERE
                                             : "cannot be compiled; delete the host functions: the "
                                               "lines of the header say what they did");
    buf_finish(&text);
    buf_finish(&launchers);
    return what != NULL;
}

bool host_source_find_host_code(const char *file, const char *source, struct opd_err *err)
{
    return find(file, source, false, err);
}

bool host_source_find_launch(const char *file, const char *source, struct opd_err *err)
{
    return find(file, source, true, err);
}

struct array {
    const char *type, *type_end; // without alignment
    struct host_token name;
};

static void skip_group(struct host_lexer *l)
{
    int depth = 0;
    struct host_token t;
    do {
        t = host_lex(l);
        depth += host_token_is(&t, "(") ? 1 : host_token_is(&t, ")") ? -1 : 0;
    } while (depth > 0 && t.kind != HOST_END);
}

// `T name[];`, behind `extern __shared__`. Other forms are left alone: the compiler shows them.
static bool read_array(struct host_lexer *l, struct array *out)
{
    struct host_token t, last[3] = { 0 };
    *out = (struct array){ 0 };
    for (;;) {
        t = host_lex(l);
        if (t.kind == HOST_END || t.kind == HOST_DIRECTIVE || host_token_is(&t, "{"))
            return false;
        if (host_token_is(&t, "__align__") || host_token_is(&t, "alignas") ||
            host_token_is(&t, "__attribute__")) {
            skip_group(l);
            continue;
        }
        if (host_token_is(&t, ";"))
            break;
        if (!out->type)
            out->type = t.at;
        last[0] = last[1];
        last[1] = last[2];
        last[2] = t;
    }
    out->name = last[0];
    out->type_end = last[0].at;
    return last[0].kind == HOST_WORD && host_token_is(&last[1], "[") &&
           host_token_is(&last[2], "]") && out->type < out->type_end;
}

// An array of unknown length, as it is on the GPU: `reinterpret_cast<storage &>(name)` is what lies
// there.
static void write_array(const struct array *a, bool local, struct buf *out)
{
    int size = (int)(a->type_end - a->type), n = (int)a->name.size;
    buf_printf(out, "%s%.*s (&%.*s)[] = *(%.*s(*)[])opd_cpu_arena;",
               local ? "" : "static thread_local ", size, a->type, n, a->name.at, size, a->type);
}

// Is it that directive? Then *out is what follows its word.
static bool is_directive(const struct host_token *t, const char *word, struct host_token *out)
{
    struct host_lexer l = { t->at + 1, t->line, false };
    if (t->kind != HOST_DIRECTIVE)
        return false;
    struct host_token first = host_lex(&l);
    *out = host_lex(&l);
    return host_token_is(&first, word);
}

// What these have is refused by the word.
static bool find_refused(const char *name, struct field_header *out)
{
    *out = (struct field_header){ .text = "" };
    return strncmp(name, "cuda_", 5) == 0 || strncmp(name, "cuda/", 5) == 0 ||
           strncmp(name, "mma.h", 5) == 0;
}

// Of a header that was put in place; the compiler would warn.
static bool is_pragma_once(const struct host_token *t)
{
    struct host_token once;
    return is_directive(t, "pragma", &once) && host_token_is(&once, "once");
}

// `__constant__ const`: the shim's __constant__ is a const itself, and C++ takes no second one.
static bool declares_const(struct host_lexer l)
{
    for (struct host_token next; (next = host_lex(&l)).kind == HOST_WORD;)
        if (host_token_is(&next, "const"))
            return true;
    return false;
}

void host_source_rewrite(const char *source, const char *folder, struct buf *out)
{
    struct host_lexer l = { source, 1, true };
    struct scope scope = { 0 };
    struct host_token t, last = { 0 };
    const char *done = source;
    bool is_const = false;
    while ((t = host_lex(&l)).kind != HOST_END) {
        struct place place;
        follow_line(&l, &t, &place);
        struct field_header header;
        const char *included = field_included(&t);
        bool ours = included && (field_find(included, &header) || find_refused(included, &header));
        bool absent = !ours && field_is_absent(&t, folder);
        if (ours || absent || is_pragma_once(&t)) {
            buf_append(out, done, (size_t)(t.at - done));
            if (absent)
                buf_printf(out, "#warning %.*s: " FIELD_ABSENT, (int)strcspn(included, ">\"\n"),
                           included);
            if (ours && header.text[0])
                buf_printf(out, "#include \"%s\"", header.file);
            done = t.at + t.size;
        }
        if (host_token_is(&t, "__constant__") && (is_const || declares_const(l))) {
            buf_append(out, done, (size_t)(t.at - done));
            buf_printf(out, "%-*s", (int)t.size, "static"); // columns stay
            done = t.at + t.size;
        }
        struct host_lexer ahead = l;
        struct host_token shared = host_lex(&ahead);
        if (host_token_is(&t, "static") && host_token_is(&shared, "__shared__")) {
            buf_append(out, done, (size_t)(t.at - done));
            buf_printf(out, "%-*s", (int)t.size, ""); // which the shim's is, too
            done = t.at + t.size;
        }
        struct array array;
        if (host_token_is(&t, "extern") && host_token_is(&shared, "__shared__") &&
            read_array(&ahead, &array)) {
            buf_append(out, done, (size_t)(t.at - done));
            write_array(&array, scope.n_inner > 0, out);
            buf_printf(out, "\n#line %d\n", ahead.line);
            done = ahead.p;
            l = ahead;
            continue;
        }
        is_const = host_token_is(&t, "const") || (is_const && t.kind == HOST_WORD);
        follow_scope(&scope, &last, &t);
        last = t;
    }
    buf_append_str(out, done);
}
