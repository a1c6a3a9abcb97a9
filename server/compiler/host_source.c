#include "compiler/host_source.h"

#include <string.h>

#include "compiler/host_cond.h"
#include "compiler/host_lex.h"

// A word that the CPU device cannot serve; with '*' at its end, every word that begins so.
static const struct {
    const char *word, *what;
} refused[] = {
    { "asm", "inline PTX (asm)" },
    { "__asm", "inline PTX (asm)" },
    { "__asm__", "inline PTX (asm)" },
    { "wmma", "tensor-core code (wmma)" },
    { "nvcuda", "tensor-core code (nvcuda)" },
    { "mma_sync", "tensor-core code (mma_sync)" },
    { "load_matrix_sync", "tensor-core code (load_matrix_sync)" },
    { "tex1D*", "a texture" },
    { "tex2D*", "a texture" },
    { "tex3D*", "a texture" },
    { "texCubemap*", "a texture" },
    { "cudaTextureObject_t", "a texture" },
    { "surf1D*", "a surface" },
    { "surf2D*", "a surface" },
    { "surf3D*", "a surface" },
    { "cudaSurfaceObject_t", "a surface" },
    { "cooperative_groups", "a cooperative group" },
    { "this_grid", "a sync of the whole grid (cooperative groups)" },
    { "__cluster_dims__", "a thread block cluster" },
    { "__pipeline_*", "an asynchronous copy (pipeline)" },
    { "cudaLaunchKernel*", "a launch from a kernel (dynamic parallelism)" },
    { "cudaLaunchDevice*", "a launch from a kernel (dynamic parallelism)" },
    { "<<<", "a launch from a kernel (dynamic parallelism)" },
};

static const struct {
    const char *word, *what;
} refused_in_cuda[] = {
    { "barrier", "cuda::barrier" },
    { "pipeline", "cuda::pipeline" },
    { "memcpy_async", "cuda::memcpy_async" },
};

static bool matches(const struct host_token *t, const char *word)
{
    size_t n = strlen(word);
    if (word[n - 1] == '*')
        return t->size >= n - 1 && memcmp(t->at, word, n - 1) == 0;
    return host_token_is(t, word);
}

static const char *find_refused(const struct host_token *t)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (matches(t, refused[i].word))
            return refused[i].what;
    return NULL;
}

// `last` and the one before it stand before `t`.
static const char *find_refused_in_cuda(const struct host_token last[2], const struct host_token *t)
{
    if (!last[0].at || !host_token_is(&last[0], "cuda") || !host_token_is(&last[1], "::"))
        return NULL;
    for (size_t i = 0; i < sizeof refused_in_cuda / sizeof *refused_in_cuda; i++)
        if (host_token_is(t, refused_in_cuda[i].word))
            return refused_in_cuda[i].what;
    return NULL;
}

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

// What of a PyTorch extension the header of the file replaces; NULL: it is none of that.
static const char *find_host_code(const struct function *f, const struct host_token *t)
{
    static const char *const words[] = { "PYBIND11_MODULE", "TORCH_LIBRARY*", "AT_DISPATCH_*" };
    if (host_token_is(t, "<<<") && !f->device)
        return "a launch outside of kernels";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (matches(t, words[i]))
            return words[i][0] == 'A'   ? "AT_DISPATCH"
                   : words[i][0] == 'T' ? "TORCH_LIBRARY"
                                        : words[i];
    return NULL;
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

static bool fail_refused(const struct place *place, int line, const char *what, struct opd_err *err)
{
    return opd_err_set(
        err, OPD_E_compile_error,
        "%.*s:%d: %s cannot run on the cpu device; guard it with #ifdef __CUDA_ARCH__",
        (int)place->size, place->file, line, what);
}

static bool fail_host_code(const struct place *place, int line, const char *what,
                           struct opd_err *err)
{
    return opd_err_set(
        err, OPD_E_compile_error,
        "%.*s:%d: %s cannot be compiled; delete the host functions: the lines of the header "
        "say what they did",
        (int)place->size, place->file, line, what);
}

// One run over tokens; `end` cuts it where the text of a macro is checked.
static bool check_text(struct place place, struct host_lexer l, const char *end,
                       struct opd_err *err)
{
    struct host_cond cond = { 0 };
    struct function function = { .device = end != NULL }; // a macro's text may be a kernel's
    struct host_token last[2] = { 0 }, t = { 0 };
    while ((t = host_lex(&l)).kind != HOST_END && (!end || t.at < end)) {
        if (t.kind == HOST_DIRECTIVE) {
            follow_line(&l, &t, &place);
            host_cond_step(&cond, &t);
            struct host_lexer body = { t.at + 1, t.line, false };
            struct host_token word = host_lex(&body);
            if (host_token_is(&word, "define") && host_cond_active(&cond) &&
                !check_text(place, body, t.at + t.size, err))
                return false;
        } else if (t.kind != HOST_STRING && host_cond_active(&cond)) {
            const char *what = find_host_code(&function, &t);
            if (what)
                return fail_host_code(&place, t.line, what, err);
            what = find_refused(&t);
            if (!what)
                what = find_refused_in_cuda(last, &t);
            if (what)
                return fail_refused(&place, t.line, what, err);
        }
        if (t.kind != HOST_DIRECTIVE)
            follow_function(&function, &last[1], &t);
        last[0] = last[1];
        last[1] = t;
    }
    return true;
}

bool host_source_find_host_code(const char *file, const char *source, struct opd_err *err)
{
    struct place place = { file, strlen(file) };
    struct host_lexer l = { source, 1, true };
    struct function function = { 0 };
    struct host_token last = { 0 }, t;
    while ((t = host_lex(&l)).kind != HOST_END) {
        const char *what = t.kind == HOST_WORD || t.kind == HOST_SIGN
                               ? find_host_code(&function, &t)
                               : NULL;
        follow_line(&l, &t, &place);
        if (what)
            return !fail_host_code(&place, t.line, what, err);
        if (t.kind != HOST_DIRECTIVE)
            follow_function(&function, &last, &t);
        last = t;
    }
    return false;
}

bool host_source_check(const char *file, const char *source, struct opd_err *err)
{
    return check_text((struct place){ file, strlen(file) }, (struct host_lexer){ source, 1, true },
                      NULL, err);
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

static void write_array(const struct array *a, bool local, struct buf *out)
{
    int size = (int)(a->type_end - a->type), n = (int)a->name.size;
    buf_printf(out, "%s%.*s *const %.*s = (%.*s *)opd_cpu_arena;",
               local ? "" : "static thread_local ", size, a->type, n, a->name.at, size, a->type);
}

bool host_source_is_extension_header(const char *name)
{
    static const char *const folders[] = { "torch/", "ATen/", "c10/", "THC/", "pybind11/" };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (strncmp(name, folders[i], strlen(folders[i])) == 0)
            return true;
    return false;
}

// Kernels need nothing of it, and NVRTC is given empty ones of those that are usual.
static bool includes_extension(const struct host_token *t)
{
    struct host_lexer l = { t->at + 1, 1, false };
    if (t->kind != HOST_DIRECTIVE)
        return false;
    struct host_token include = host_lex(&l), name = host_lex(&l);
    return host_token_is(&include, "include") &&
           (host_token_is(&name, "<") || name.kind == HOST_STRING) &&
           host_source_is_extension_header(name.at + 1);
}

// Of a header that was put in place; the compiler would warn.
static bool is_pragma_once(const struct host_token *t)
{
    struct host_lexer l = { t->at + 1, 1, false };
    if (t->kind != HOST_DIRECTIVE)
        return false;
    struct host_token pragma = host_lex(&l), once = host_lex(&l);
    return host_token_is(&pragma, "pragma") && host_token_is(&once, "once");
}

void host_source_rewrite(const char *source, struct buf *out)
{
    struct host_lexer l = { source, 1, true };
    struct scope scope = { 0 };
    struct host_token t, last = { 0 };
    const char *done = source;
    while ((t = host_lex(&l)).kind != HOST_END) {
        struct place place;
        follow_line(&l, &t, &place);
        if (is_pragma_once(&t) || includes_extension(&t)) {
            buf_append(out, done, (size_t)(t.at - done));
            done = t.at + t.size;
        }
        struct host_lexer ahead = l;
        struct host_token shared = host_lex(&ahead);
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
        follow_scope(&scope, &last, &t);
        last = t;
    }
    buf_append_str(out, done);
}
