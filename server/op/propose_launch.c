#include "op/propose_launch.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>
#include <strings.h>

// The host's expressions are followed through its own names, by text alone: what is not understood
// is left to the question that quotes the launch.

enum { MAX_DEPTH = 6 };

struct speller {
    struct proposal *p;
    const struct signature *k;
    const char *text, *launch; // names are looked up before it
    const char *args;          // of the launch, at the bracket
    struct buf out;
};

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t\n\\");
}

// Behind what stands at `at`, up to one of `ends` that is in no brackets.
static const char *find_end(const char *at, const char *end, const char *ends)
{
    int depth = 0;
    for (; at < end && *at; at++) {
        if (depth == 0 && strchr(ends, *at))
            return at;
        depth += (strchr("({[", *at) != NULL) - (strchr(")}]", *at) != NULL);
        if (depth < 0)
            return at;
    }
    return at;
}

static size_t count_word(const char *at)
{
    size_t n = 0;
    while (!isdigit((unsigned char)*at) && guess_is_word_char(at[n]))
        n++;
    return n;
}

// "dim3 NAME(...)", "NAME = ..." before the launch: what is in the brackets, or behind the '='.
static bool find_definition(const struct speller *s, const char *name, const char **out_begin,
                            const char **out_end)
{
    const char *found = NULL;
    for (const char *at = s->text; (at = guess_find_word(at, s->launch, name));
         at += strlen(name)) {
        const char *next = skip_space(at + strlen(name)), *before = at;
        while (before > s->text && isspace((unsigned char)before[-1]))
            before--;
        bool dim3 = before - s->text >= 4 && (strncmp(before - 4, "dim3", 4) == 0 ||
                                                 strncmp(before - 2, "),", 2) == 0);
        if ((*next == '=' && next[1] != '=') || (dim3 && (*next == '(' || *next == '{')))
            found = next;
    }
    if (!found)
        return false;
    bool assigned = *found == '=';
    found = assigned ? skip_space(found + 1) : found;
    const char *open = strncmp(found, "dim3", 4) == 0 ? skip_space(found + 4) : found;
    bool inside = *open == '{' || (*open == '(' && (open > found || !assigned));
    *out_begin = inside ? open + 1 : found;
    *out_end = find_end(*out_begin, s->launch, inside ? ")}" : ";,");
    return inside || **out_end == ';' || **out_end == ',';
}

static bool spell(struct speller *s, const char *at, const char *end, int depth);

static bool is_tensor(const struct proposal *p, const char *name)
{
    for (int i = 0; i < p->n_tensors; i++)
        if (strcmp(p->tensors[i].name, name) == 0)
            return true;
    return false;
}

static bool is_value(const struct proposal *p, const char *name)
{
    bool known = guess_is_listed(p->sizes, p->n_sizes, name) ||
                 (p->total && strcmp(p->total, name) == 0);
    for (int i = 0; i < p->n_attrs && !known; i++)
        known = strcmp(p->attrs[i].name, name) == 0;
    return known;
}

// "x.size(1)", "x.numel()", behind the tensor's name. NULL: something else.
static const char *spell_size(struct speller *s, const char *name, const char *at)
{
    if (strncmp(at, ".numel()", 8) == 0) {
        buf_printf(&s->out, "numel(%s)", name);
        return at + 8;
    }
    size_t digits = strncmp(at, ".size(", 6) == 0 ? strspn(at + 6, "-0123456789") : 0;
    if (digits == 0 || at[6 + digits] != ')')
        return NULL;
    buf_printf(&s->out, "size(%s, %.*s)", name, (int)digits, at + 6);
    return at + 7 + digits;
}

// "sizeof(float)" is 4. NULL: of another type.
static const char *spell_sizeof(struct speller *s, const char *at)
{
    static const struct {
        const char *type, *size;
    } sizes[] = { { "(float)", "4" }, { "(int)", "4" },  { "(double)", "8" },
                  { "(half)", "2" },  { "(char)", "1" }, { "(scalar_t)", "sizeof(scalar_t)" } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strncmp(at, sizes[i].type, strlen(sizes[i].type)) == 0) {
            buf_append_str(&s->out, sizes[i].size);
            return at + strlen(sizes[i].type);
        }
    return NULL;
}

// "n" where the host launches the kernel with its N for that parameter.
static const char *find_own_name(const struct speller *s, const char *name)
{
    const char *at = skip_space(s->args), *end = s->text + strlen(s->text);
    size_t n = strlen(name);
    for (int i = 0; i < s->k->n_params && *at && strchr("(,", *at) && !s->k->params[i].path; i++) {
        const char *arg = skip_space(at + 1);
        at = find_end(arg, end, ",");
        if (strncmp(arg, name, n) == 0 && skip_space(arg + n) == at && s->k->params[i].name)
            return s->k->params[i].name;
    }
    return name;
}

static bool is_division(const char *name)
{
    return guess_has_part(name, WORDS("ceil_div", "ceildiv", "cdiv", "div_up", "divup",
                                      "div_ceil", "divide_up"));
}

// A name and what belongs to it. NULL: it says nothing here.
static const char *spell_name(struct speller *s, const char *at, int depth)
{
    const char *name = arena_strndup(&s->p->arena, at, count_word(at)), *begin, *end;
    at += strlen(name);
    if (strncmp(at, "::", 2) == 0)
        return NULL;
    if (strcmp(name, "sizeof") == 0)
        return spell_sizeof(s, at);
    if (*at == '(') {
        buf_append_str(&s->out, "cdiv");
        return is_division(name) ? at : NULL;
    }
    if (*at == '.')
        return is_tensor(s->p, name) ? spell_size(s, name, at) : NULL;
    const char *own = find_own_name(s, name);
    own = is_value(s->p, own) ? own : name;
    bool defined = !is_value(s->p, own) && find_definition(s, name, &begin, &end);
    const char *plain = defined ? NULL : is_value(s->p, own) ? own : guess_constant(s->p, name);
    if (plain) {
        buf_append_str(&s->out, plain);
        return at;
    }
    if (depth == MAX_DEPTH || !defined)
        return NULL;
    size_t from = s->out.size;
    int64_t number;
    bool factor = from > 2 && strchr("*/%", buf_str(&s->out)[from - 2]); // "n / "
    bool sum = find_end(begin, end, factor ? "+-*/%" : "+-") < end &&
               find_end(begin, end, ",") == end;
    buf_append_str(&s->out, sum ? "(" : "");
    bool good = spell(s, begin, end, depth + 1);
    buf_append_str(&s->out, sum ? ")" : "");
    const char *value = buf_str(&s->out) + from;
    bool plain_number = !value[strspn(value, "0123456789+-*/%() ")];
    if (good && plain_number && constant_eval("", 0, value, &number)) {
        s->out.size = from;
        buf_printf(&s->out, "%" PRId64, number);
    }
    return good ? at : NULL;
}

static bool spell(struct speller *s, const char *at, const char *end, int depth)
{
    while ((at = skip_space(at)) < end) {
        size_t digits = strspn(at, "0123456789");
        if (digits > 0) {
            buf_append(&s->out, at, digits);
            at += digits + strspn(at + digits, "uUlL");
            if (guess_is_word_char(*at) || *at == '.')
                return false;
        } else if (guess_is_word_char(*at)) {
            at = spell_name(s, at, depth);
            if (!at)
                return false;
        } else if (strchr("+-*/%", *at)) {
            buf_printf(&s->out, " %c ", *at++);
        } else if (strchr("()", *at)) {
            buf_append(&s->out, at++, 1);
        } else if (*at == ',') {
            buf_append_str(&s->out, ", ");
            at++;
        } else {
            return false;
        }
    }
    return s->out.size > 0;
}

// NULL: not all of it is known.
static const char *spell_extents(struct speller s, const char *at, const char *end)
{
    at = skip_space(at);
    while (end > at && isspace((unsigned char)end[-1]))
        end--;
    bool dim3 = strncmp(at, "dim3", 4) == 0 && strchr("({", *skip_space(at + 4));
    at = dim3 ? skip_space(at + 4) + 1 : at;
    bool good = spell(&s, at, dim3 ? end - 1 : end, 0);
    const char *extents = good ? arena_strndup(&s.p->arena, buf_str(&s.out), s.out.size) : NULL;
    buf_finish(&s.out);
    return extents;
}

static const char *find_launch(const char *text, const struct signature *k, const char **out_open,
                               const char **out_close)
{
    const char *end = text + strlen(text);
    for (const char *at = text; (at = guess_find_word(at, end, k->name)); at += strlen(k->name)) {
        const char *semicolon = strpbrk(at, ";{");
        *out_open = strstr(at, "<<<");
        *out_close = *out_open ? strstr(*out_open, ">>>") : NULL;
        if (*out_close && (!semicolon || semicolon > *out_open))
            return at;
    }
    return NULL;
}

bool guess_launch(struct proposal *p, const struct signature *k, struct guessed_launch *out)
{
    const char *text = p->code, *open, *close, *launch = find_launch(text, k, &open, &close);
    const char *texts[3] = { NULL };
    *out = (struct guessed_launch){ 0 };
    if (!launch) { // in a macro, perhaps
        text = p->text;
        launch = find_launch(text, k, &open, &close);
    }
    if (!launch)
        return false;
    struct speller s = { .p = p, .k = k, .text = text, .launch = launch, .args = close + 3 };
    const char *at = open + 3;
    for (int i = 0; i < 3 && at < close; i++) {
        const char *end = find_end(at, close, ",");
        texts[i] = spell_extents(s, at, end);
        at = end + 1;
    }
    struct buf line = { 0 };
    for (const char *c = launch; c < close + 3; c++)
        if (!isspace((unsigned char)*c))
            buf_append(&line, c, 1);
    *out = (struct guessed_launch){ arena_strndup(&p->arena, buf_str(&line), line.size), texts[0],
                                    texts[1], texts[2] };
    buf_finish(&line);
    return true;
}
