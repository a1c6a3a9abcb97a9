#include <math.h>
#include <stdlib.h>

#include "op/derive.h"
#include "base/mem.h"
#include "op/reader.h"
#include "op/rules.h"

enum { POINTS = 64 / FORMULA_POINT_ROW };

// A written gradient at a point where it is not what follows from the formulas.
struct difference {
    double written, derived;
};

static double next_random(uint64_t *state) // from -1 to 1
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(int64_t)*state / 0x1p63;
}

// The first example's attributes and lets; else the defaults, of tensors without dimensions. False:
// such a request is refused.
static bool find_values(const struct op *op, struct formula_point *at)
{
    const struct formula_set *set = op->body->formulas;
    struct plan_request request = { .op = op, .direction = PLAN_FORWARD, .on_cpu = true };
    struct env *env = mem_zalloc(1, sizeof *env);
    struct opd_err err = { 0 };
    if (!plan_example(op, 0, OPD_DTYPE_NONE, &request)) {
        for (int i = 0; i < op->n_inputs; i++)
            request.inputs[i].dtype = op->types[op->inputs[i].type].dtypes[0];
        for (int i = 0; i < op->n_attrs; i++)
            request.attrs[i] = op->attrs[i].value;
    }
    bool ok = rules_apply(&request, env, &err);
    for (int v = 0; ok && v < set->n_values; v++) {
        const struct expr *e = set->values[v].expr;
        union expr_value value;
        ok = expr_eval(e, env, &value, &err);
        at->values[v] = e->type == EXPR_FLOAT ? value.f : (double)value.i;
        at->known[v] = set->values[v].is_constant ? value.i != 0 : -1;
    }
    opd_err_clear(&err);
    free(env);
    return ok;
}

static void choose_row(const struct op *op, struct formula_point *at, int k, uint64_t *random)
{
    const struct formula_set *set = op->body->formulas;
    double scale = next_random(random) < 0 ? 0.9 : 4;
    for (int i = 0; i < op->n_inputs; i++) {
        double value = next_random(random);
        bool is_float = dtype_is_float(op->types[op->inputs[i].type].dtypes[0]);
        at->tensors[i][k] = is_float ? scale * value : value > 0;
    }
    for (int o = 0; o < op->n_outputs; o++) {
        double *grad = at->tensors[TENSOR_GRAD_OUTPUT + o];
        const struct node *root = set->items[formula_find(set, TENSOR_OUTPUT + o)].root;
        bool again = k > 0 && formula_level(op, set, root, at->known) == LEVEL_ROW;
        grad[k] = again ? grad[0] : 1 + 0.5 * next_random(random);
    }
}

static bool is_near(double a, double b)
{
    return !isfinite(a) || !isfinite(b) || fabs(a - b) <= 1e-6 * (1e-3 + fabs(a) + fabs(b));
}

static int find_gradient(const struct formula_set *set, int from, int input)
{
    while (from < set->n && set->items[from].target != TENSOR_GRAD_INPUT + input)
        from++;
    return from;
}

static void compare_at(struct reader *r, const struct formula_set *both, int n_written,
                       const struct formula_point *at, int i, int k, bool told[OP_MAX_INPUTS])
{
    int written = find_gradient(both, 0, i), derived = find_gradient(both, n_written, i);
    if (derived == both->n || told[i] ||
        is_near(at->formulas[written][k], at->formulas[derived][k]))
        return;
    told[i] = true;
    reader_warn(r, both->items[written].line,
                "%s is not the derivative of the formulas: at %s = %.6g it gives %.6g, "
                "expected %.6g; correct it, or leave it out",
                both->items[written].name, r->op->inputs[i].name, at->tensors[i][k],
                at->formulas[written][k], at->formulas[derived][k]);
}

// `both` has the written formulas, and behind them the derived ones.
static void compare(struct reader *r, const struct formula_set *both, int n_written,
                    struct formula_point *at)
{
    bool told[OP_MAX_INPUTS] = { false };
    uint64_t random = 1;
    for (int k = 0; k < POINTS; k++) {
        for (int i = 0; i < FORMULA_POINT_ROW; i++)
            choose_row(r->op, at, i, &random);
        formula_eval(both, at);
        formula_eval(both, at); // of gradients that stand before their outputs
        for (int i = 0; i < FORMULA_POINT_ROW * r->op->n_inputs; i++)
            compare_at(r, both, n_written, at, i / FORMULA_POINT_ROW, i % FORMULA_POINT_ROW, told);
    }
}

void derive_check(struct reader *r)
{
    struct formula_set *set = r->formulas;
    uint32_t inputs = 0;
    for (int i = 0; i < set->n; i++)
        if (set->items[i].target >= TENSOR_GRAD_INPUT && !set->items[i].derived &&
            !r->op->inputs[set->items[i].target - TENSOR_GRAD_INPUT].by_definition)
            inputs |= 1u << (set->items[i].target - TENSOR_GRAD_INPUT);
    for (int i = 0; i < r->op->n_inputs; i++)
        inputs = r->op->inputs[i].in_place ? 0 : inputs;
    if (!inputs)
        return;
    const char *why;
    struct formula_set *both = mem_alloc(sizeof *both);
    struct formula_point *at = mem_zalloc(1, sizeof *at);
    *both = *set; // what it gets more is not seen by `set`
    if (find_values(r->op, at) && derive_gradients(r->op, both, inputs, &why))
        compare(r, both, set->n, at);
    free(at);
    free(both);
}
