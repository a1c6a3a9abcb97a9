#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "op/propose_guess.h"

void guess_find_body(const struct proposal *p, const struct signature *k, const char **out_begin,
                     const char **out_end)
{
    *out_begin = p->code + k->body;
    *out_end = *out_begin + k->body_size;
}

bool guess_body_has(const struct proposal *p, const struct signature *k, const char *what)
{
    const char *begin, *end;
    guess_find_body(p, k, &begin, &end);
    const char *at = strstr(begin, what);
    return at && at < end;
}

// The kernel's body without spaces and parentheses.
static void append_tight(const struct proposal *p, const struct signature *k, struct buf *out)
{
    const char *begin, *end;
    guess_find_body(p, k, &begin, &end);
    for (; begin < end; begin++)
        if (!isspace((unsigned char)*begin) && *begin != '(' && *begin != ')')
            buf_append(out, begin, 1);
}

const char *guess_constant(struct proposal *p, const char *name)
{
    size_t size = strlen(p->text);
    int64_t number;
    const char *plain = alias_text(p->text, size, &p->arena, name);
    if (plain[strspn(plain, "0123456789")] == 0)
        return plain;
    return constant_eval(p->text, size, plain, &number)
               ? arena_printf(&p->arena, "%" PRId64, number)
               : NULL;
}

// Behind that text, where `at` begins so; else NULL.
static const char *skip(const char *at, const char *text)
{
    return strncmp(at, text, strlen(text)) == 0 ? at + strlen(text) : NULL;
}

// NAME of "i = blockIdx.x * NAME + threadIdx.x;", or the other ways round. NULL: there is none.
static const char *find_block_name(struct proposal *p, const char *tight, char axis)
{
    char before[] = "blockIdx.?*", behind[] = "*blockIdx.?", thread[] = "+threadIdx.?";
    char first[] = "threadIdx.?+";
    before[9] = behind[10] = thread[11] = first[10] = axis;
    for (const char *at = tight; (at = strchr(at, '='));) {
        const char *thread_first = skip(++at, first), *from = thread_first ? thread_first : at;
        const char *name = skip(from, before) ? skip(from, before) : from, *next;
        size_t n = 0;
        while (guess_is_word_char(name[n]))
            n++;
        next = name == from ? skip(name + n, behind) : name + n;
        if (next && !thread_first)
            next = skip(next, thread);
        if (n > 0 && next && (*next == ';' || *next == ','))
            return arena_strndup(&p->arena, name, n);
    }
    return NULL;
}

const char *guess_block_size(struct proposal *p, const struct signature *k, char axis)
{
    struct buf tight = { 0 };
    append_tight(p, k, &tight);
    const char *name = find_block_name(p, buf_str(&tight), axis), *size = NULL;
    buf_finish(&tight);
    for (int i = 0; name && i < k->n_template; i++)
        if (!k->template_params[i].is_type && strcmp(k->template_params[i].name, name) == 0)
            size = k->template_params[i].has_default ? "" : guess_template_arg(p, k, i);
    size = size || !name ? size : guess_constant(p, name);
    return size && isdigit((unsigned char)*size) ? size : NULL;
}

// "one.x * other.x", either of which may be cast to another type.
static bool has_product(const char *tight, const char *one, const char *other, char axis)
{
    char word[16];
    size_t n = strlen(other);
    snprintf(word, sizeof word, "%s.%c*", one, axis);
    for (const char *at = tight; (at = strstr(at, word));) {
        const char *dot = at += strlen(word);
        while (guess_is_word_char(*dot) || (*dot && strchr("<>:", *dot)))
            dot++;
        if ((size_t)(dot - at) >= n && strncmp(dot - n, other, n) == 0 && dot[0] == '.' &&
            dot[1] == axis)
            return true;
    }
    return false;
}

bool guess_is_linear(struct proposal *p, const struct signature *k, char axis)
{
    struct buf tight = { 0 };
    append_tight(p, k, &tight);
    const char *text = buf_str(&tight);
    bool found = has_product(text, "blockIdx", "blockDim", axis) ||
                 has_product(text, "blockDim", "blockIdx", axis) ||
                 (axis == 'x' && strstr(text, "KERNEL_LOOP"));
    buf_finish(&tight);
    return found || guess_block_size(p, k, axis);
}

bool guess_is_plane(struct proposal *p, const struct signature *k)
{
    return guess_is_linear(p, k, 'x') && guess_is_linear(p, k, 'y');
}

// "c" of "c = blockIdx.x * blockDim.x + threadIdx.x". NULL: there is none.
static const char *find_index(struct proposal *p, const struct signature *k, char axis)
{
    const char *begin, *end;
    char thread[] = "threadIdx.x";
    thread[strlen(thread) - 1] = axis;
    guess_find_body(p, k, &begin, &end);
    for (const char *at = begin; (at = guess_find_word(at, end, thread)); at += strlen(thread)) {
        const char *equal = at;
        while (equal > begin && !strchr("=;,{}", equal[-1]))
            equal--;
        const char *name = equal - 1;
        while (name > begin && isspace((unsigned char)name[-1]))
            name--;
        size_t n = 0, size = (size_t)(at - equal) + strcspn(at, ",;{}");
        while (name - n > begin && guess_is_word_char(name[-(ptrdiff_t)n - 1]))
            n++;
        if (n > 0 && equal > begin && equal[-1] == '=' && memmem(equal, size, "blockIdx", 8))
            return arena_strndup(&p->arena, name - n, n);
    }
    return NULL;
}

const char *guess_extent(struct proposal *p, const struct signature *k, char axis)
{
    const char *begin, *end, *index = find_index(p, k, axis);
    guess_find_body(p, k, &begin, &end);
    for (const char *at = begin; index && (at = guess_find_word(at, end, index));) {
        at += strlen(index);
        at += strspn(at, " \t\n");
        size_t n = 0, sign = *at == '<' ? 1 : strncmp(at, ">=", 2) == 0 ? 2 : 0;
        const char *size = at + sign + strspn(at + sign, " \t\n");
        while (guess_is_word_char(size[n]) || size[n] == '.')
            n++;
        for (int i = 0; i < k->n_params && sign > 0; i++) {
            const struct signature_param *param = &k->params[i];
            const char *place = param->path ? param->path : param->name;
            if (param->type && param->kind == PARAM_VALUE && strlen(place) == n &&
                strncmp(place, size, n) == 0)
                return param->name;
        }
    }
    return NULL;
}

// "row" after "row = blockIdx.x;".
static bool is_block(const char *begin, const char *end, const char *index, size_t n)
{
    static const char block[] = "blockIdx.x";
    if (n == strlen(block) && strncmp(index, block, n) == 0)
        return true;
    for (const char *at = begin; (at = memmem(at, (size_t)(end - at), block, strlen(block)));
         at += strlen(block)) {
        const char *equal = at;
        while (equal > begin && strchr(" =", equal[-1]))
            equal--;
        if (at[strlen(block)] == ';' && equal < at && (size_t)(equal - begin) > n &&
            strncmp(equal - n, index, n) == 0 && !guess_is_word_char(equal[-(ptrdiff_t)n - 1]))
            return true;
    }
    return false;
}

bool guess_is_of_block(const struct proposal *p, const struct signature *k, const char *name)
{
    const char *begin, *end;
    int n = 0;
    guess_find_body(p, k, &begin, &end);
    for (const char *at = begin; (at = guess_find_word(at, end, name)); n++) {
        at += strlen(name);
        size_t size = *at == '[' ? strcspn(at + 1, "]") : 0;
        if (size == 0 || !is_block(begin, end, at + 1, size))
            return false;
    }
    return n > 0;
}
