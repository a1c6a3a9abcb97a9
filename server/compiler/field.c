#include "compiler/field.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/mem.h"
#include "compiler/host_unit.h"

// The texts, as they lie in the repository; the assembler finds them from its root.
#define TEXT(name)                                                                                 \
    __asm__(".section .rodata\n"                                                                   \
            ".globl field_" #name "\n"                                                             \
            ".type field_" #name ", @object\n"                                                     \
            "field_" #name ":\n"                                                                   \
            ".incbin \"kernels_src/include/" #name ".cuh\"\n"                                      \
            ".byte 0\n"                                                                            \
            ".size field_" #name ", . - field_" #name "\n"                                         \
            ".previous\n");                                                                        \
    extern const char field_##name[]
TEXT(cooperative_groups);
TEXT(cub);
TEXT(curand);
TEXT(fp16);
TEXT(math_constants);
TEXT(std);
TEXT(torch);

static const struct {
    const char *file, *text;
    const char *space; // the namespace that all of it is in, or NULL
} texts[] = {
    { "opd-cooperative_groups.cuh", field_cooperative_groups, "cooperative_groups" },
    { "opd-cub.cuh", field_cub, "cub" },
    { "opd-curand.cuh", field_curand, NULL },
    { "opd-fp16.cuh", field_fp16, NULL },
    { "opd-math_constants.cuh", field_math_constants, NULL },
    { "opd-std.cuh", field_std, NULL },
    { "opd-torch.cuh", field_torch, NULL },
    { "opd-empty.cuh", "", "thrust" },
};
enum { N_TEXTS = sizeof texts / sizeof *texts };

static const struct {
    const char *name, *file;
    bool nvidia;
} names[] = {
#define FIELD(name, file) { name, file, false },
#define NVIDIA(name, file) { name, file, true },
#include "compiler/field.def"
#undef NVIDIA
#undef FIELD
};

static bool fits(const char *name, size_t size, const char *pattern)
{
    size_t n = strlen(pattern);
    char last = pattern[n - 1];
    bool begins = last == '/' || last == '*';
    n -= last == '*';
    return (begins ? size >= n : size == n) && memcmp(name, pattern, n) == 0;
}

bool field_find(const char *name, struct field_header *out)
{
    size_t size = strcspn(name, ">\"\n"), n = sizeof names / sizeof *names, i = 0;
    while (i < n && !fits(name, size, names[i].name))
        i++;
    const char *file = i < n ? names[i].file : NULL;
    int k = 0;
    while (k < N_TEXTS && !fits(name, size, texts[k].file) &&
           !(file && strcmp(texts[k].file + strlen("opd-"), file) == 0))
        k++;
    if (k == N_TEXTS && i == n)
        return false;
    k -= k == N_TEXTS; // which is empty
    *out = (struct field_header){ texts[k].file, texts[k].text, i < n && names[i].nvidia };
    return true;
}

const char *field_included(const struct host_token *directive)
{
    struct host_lexer l = { directive->at + 1, 1, false };
    if (directive->kind != HOST_DIRECTIVE)
        return NULL;
    struct host_token word = host_lex(&l), name = host_lex(&l);
    bool quoted = host_token_is(&name, "<") || name.kind == HOST_STRING;
    return host_token_is(&word, "include") && quoted ? name.at + 1 : NULL;
}

// By <>, only names with an ending: those without are C++'s.
bool field_is_absent(const struct host_token *directive, const char *folder)
{
    struct field_header header;
    const char *name = field_included(directive);
    if (!name || field_find(name, &header))
        return false;
    size_t size = strcspn(name, ">\"\n");
    const char *const folders[] = { folder, name[-1] == '<' ? "/usr/include" : NULL };
    bool absent = name[-1] == '"' || memchr(name, '.', size);
    for (int i = 0; i < 2 && absent; i++) {
        char *path = folders[i] ? mem_printf("%s/%.*s", folders[i], (int)size, name) : NULL;
        absent = !path || access(path, R_OK) != 0;
        free(path);
    }
    return absent;
}

struct visited {
    struct buf names; // of char *
    field_visit *visit;
    void *arg;
};

static bool is_visited(const struct visited *v, const char *name, size_t size)
{
    for (size_t i = 0; i < HOST_COUNT(v->names, char *); i++) {
        const char *old = *HOST_AT(v->names, char *, i);
        if (strncmp(old, name, size) == 0 && !old[size])
            return true;
    }
    return false;
}

static void visit_included(struct visited *v, const char *source)
{
    struct host_lexer l = { source, 1, true };
    for (struct host_token t; (t = host_lex(&l)).kind != HOST_END;) {
        const char *name = field_included(&t);
        struct field_header header;
        if (!name || !field_find(name, &header) || is_visited(v, name, strcspn(name, ">\"\n")))
            continue;
        char *copy = mem_strndup(name, strcspn(name, ">\"\n"));
        buf_append(&v->names, &copy, sizeof copy);
        v->visit(copy, &header, v->arg);
        visit_included(v, header.text);
    }
}

static void visit_all(field_visit *visit, void *arg)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct field_header header;
        if (!strpbrk(names[i].name, "*") && names[i].name[strlen(names[i].name) - 1] != '/' &&
            field_find(names[i].name, &header))
            visit(names[i].name, &header, arg);
    }
}

void field_each(const char *source, field_visit *visit, void *arg)
{
    struct visited v = { .visit = visit, .arg = arg };
    if (!source)
        visit_all(visit, arg);
    else if (strstr(source, "include"))
        visit_included(&v, source);
    for (size_t i = 0; i < HOST_COUNT(v.names, char *); i++)
        free(*HOST_AT(v.names, char *, i));
    buf_finish(&v.names);
}

static bool is_word(char c)
{
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

// In its code or comments.
static bool has_word(const char *text, const struct host_token *word)
{
    size_t size = strlen(text);
    const char *at = text;
    while ((at = memmem(at, size - (size_t)(at - text), word->at, word->size)) != NULL) {
        if ((at == text || !is_word(at[-1])) && !is_word(at[word->size]))
            return true;
        at++;
    }
    return false;
}

// The text of the namespace, which may go by another name. -1: it is none of these.
static int find_space(const struct host_token *space, const struct host_token *aliases)
{
    for (int i = 0; i < N_TEXTS; i++)
        if (texts[i].space && (host_token_is(space, texts[i].space) ||
                               (aliases[i].size > 0 && aliases[i].size == space->size &&
                                memcmp(aliases[i].at, space->at, space->size) == 0)))
            return i;
    return -1;
}

bool field_suffices(const char *source)
{
    struct host_lexer l = { source, 1, true };
    struct host_token aliases[N_TEXTS] = { 0 }, before = { 0 }, last = { 0 }, t;
    for (; (t = host_lex(&l)).kind != HOST_END; before = last, last = t) {
        struct host_lexer ahead = l;
        struct host_token word = host_lex(&ahead);
        bool named = host_token_is(&last, "=") && host_token_is(&word, ";");
        int space = named ? find_space(&t, aliases) : -1;
        if (space >= 0)
            aliases[space] = before;
        if (last.kind != HOST_WORD || !host_token_is(&t, "::"))
            continue;
        space = find_space(&last, aliases);
        bool theirs = host_token_is(&last, "cuda") && host_token_is(&word, "std");
        if (theirs || (space >= 0 && !has_word(texts[space].text, &word)))
            return false;
    }
    return true;
}

// Names that are used without an include of their own: PyTorch's headers bring them.
static const struct {
    const char *words, *include;
} brought[] = {
    { " __half __half2 half half2 __float2half __half2float ", "cuda_fp16.h" },
    { " __nv_bfloat16 __nv_bfloat162 nv_bfloat16 nv_bfloat162 ", "cuda_bf16.h" },
};

static bool is_in(const struct host_token *t, const char *words)
{
    char *word = mem_printf(" %.*s ", (int)t->size, t->at);
    bool found = strstr(words, word) != NULL;
    free(word);
    return found;
}

void field_bring(const char *source, struct buf *out)
{
    struct host_lexer l = { source, 1, true };
    struct host_token last = { 0 }, before = { 0 }, t;
    bool torch = false, std = false, halves[2] = { false };
    for (; (t = host_lex(&l)).kind != HOST_END; before = last, last = t) {
        struct field_header header;
        const char *name = field_included(&t);
        torch |= name && field_find(name, &header) && header.text == field_torch;
        std |= host_token_is(&last, "::") && host_token_is(&before, "std") && t.kind == HOST_WORD &&
               has_word(field_std, &t);
        for (int i = 0; i < 2 && t.kind == HOST_WORD; i++)
            halves[i] |= (*t.at == '_' || *t.at == 'h' || *t.at == 'n') &&
                         !(host_token_is(&t, "half") && !torch) && is_in(&t, brought[i].words);
    }
    if (std)
        buf_append_str(out, "#include <utility>\n");
    for (int i = 0; i < 2; i++)
        if (halves[i])
            buf_printf(out, "#include <%s>\n", brought[i].include);
}

uint64_t field_hash(void)
{
    uint64_t hash = 0;
    for (int i = 0; i < N_TEXTS; i++)
        hash = hash_bytes(texts[i].text, strlen(texts[i].text), hash);
    return hash;
}
