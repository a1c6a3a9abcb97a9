#include <ctype.h>
#include <string.h>

#include "op/propose_guess.h"

// Which sizes an operator has: dimensions of its tensors, or attributes.

void guess_add_size(struct proposal *p, const char *name, const char *owner)
{
    if (p->n_sizes == MAX_NAMES || guess_is_listed(p->sizes, p->n_sizes, name))
        return;
    p->owners[p->n_sizes] = owner;
    p->sizes[p->n_sizes++] = name;
}

static bool is_named(const struct proposal *p, const char *name)
{
    bool named = guess_is_listed(p->sizes, p->n_sizes, name);
    for (int i = 0; i < p->n_tensors && !named; i++)
        named = strcmp(p->tensors[i].name, name) == 0;
    for (int i = 0; i < p->n_attrs && !named; i++)
        named = strcmp(p->attrs[i].name, name) == 0;
    return named;
}

static bool is_given(const struct guessed_tensor *t)
{
    return t->role == INPUT || t->role == CHANGED;
}

// As many as the accessors of inputs have dimensions. Where all inputs are accessors, more are
// attributes.
static void fit_ranks(struct proposal *p, int most, bool ranked)
{
    const char *const *names = WORDS("N", "C", "D", "H", "W", "K", "L", "M");
    for (; *names && p->n_sizes < most; names++)
        if (!is_named(p, *names))
            guess_add_size(p, *names, "");
    for (int i = most; ranked && i < p->n_sizes && p->n_attrs < MAX_NAMES; i++)
        p->attrs[p->n_attrs++] = (struct guessed_value){ p->sizes[i], "int" };
    p->n_sizes = ranked && most < p->n_sizes ? most : p->n_sizes;
}

// Of a struct whose tensors are results: no input says them.
static bool is_of_result(const struct proposal *p, int size)
{
    bool made = false, given = false, others = false;
    for (int i = 0; i < p->n_sizes; i++)
        others = others || strcmp(p->owners[i], p->owners[size]) != 0;
    for (int i = 0; i < p->n_tensors; i++) {
        bool own = strcmp(p->tensors[i].owner, p->owners[size]) == 0;
        made = made || (own && !is_given(&p->tensors[i]));
        given = given || (own && is_given(&p->tensors[i]));
    }
    return p->owners[size][0] && made && !given && others;
}

// "row * cols", "i / cols": the operator before the name, perhaps with a cast between.
static bool is_behind(const struct proposal *p, const struct signature *k, const char *name,
                      const char *operators)
{
    const char *begin, *end;
    guess_find_body(p, k, &begin, &end);
    for (const char *at = begin; (at = guess_find_word(at, end, name)); at += strlen(name)) {
        const char *before = at;
        while (before > begin && (isspace((unsigned char)before[-1]) || before[-1] == ')'))
            if (*--before == ')')
                while (before > begin && *before != '(')
                    before--;
        if (before > begin && strchr(operators, before[-1]))
            return true;
    }
    return false;
}

// A block for each row, or more elements than one of the sizes has: there are rows of that size.
static bool has_rows(struct proposal *p)
{
    const struct signature *k = p->kernels[0];
    bool blocks = !guess_is_linear(p, k, 'x') && guess_body_has(p, k, "blockIdx.x");
    return (p->total ? is_behind(p, k, p->sizes[0], "/%")
                     : blocks && is_behind(p, k, p->sizes[0], "*")) &&
           !is_named(p, "N");
}

// "y * width + x" of "int width, int height": the rows are as long as the first of them says.
static void turn_plane(struct proposal *p)
{
    const struct signature *k = p->kernels[0];
    const char *across = p->n_sizes == 2 && guess_is_plane(p, k) ? guess_extent(p, k, 'x') : NULL;
    if (!across || strcmp(across, p->sizes[0]) != 0 || !is_behind(p, k, across, "*") ||
        is_behind(p, k, p->sizes[1], "*"))
        return;
    const char *owner = p->owners[0];
    p->sizes[0] = p->sizes[1];
    p->owners[0] = p->owners[1];
    p->sizes[1] = across;
    p->owners[1] = owner;
}

static void put_first(struct proposal *p, const char *name)
{
    p->sizes[1] = p->sizes[0];
    p->owners[1] = p->owners[0];
    p->sizes[0] = name;
    p->owners[0] = "";
    p->n_sizes = 2;
}

void guess_sizes(struct proposal *p)
{
    int n_inputs = 0, n_ranked = 0, most = 0;
    for (int i = 0; i < p->n_tensors; i++) {
        int rank = is_given(&p->tensors[i]) ? p->tensors[i].rank : 0;
        n_inputs += is_given(&p->tensors[i]);
        n_ranked += rank > 0;
        most = rank > most ? rank : most;
    }
    if (p->n_sizes == 0)
        guess_add_size(p, p->total && !most ? p->total : "N", "");
    if (p->total && strcmp(p->sizes[0], p->total) == 0)
        p->total = NULL;
    turn_plane(p);
    if (n_inputs > 0 && n_ranked == 0 && p->n_sizes == 1 && has_rows(p))
        put_first(p, "N");
    fit_ranks(p, most, n_ranked > 0 && n_ranked == n_inputs);
    for (int i = 0; i < p->n_sizes && p->n_attrs < MAX_NAMES; i++)
        if (n_inputs == 0 || is_of_result(p, i))
            p->attrs[p->n_attrs++] = (struct guessed_value){ p->sizes[i], "int" };
}
