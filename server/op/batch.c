#include <string.h>

#include "op/formula.h"
#include "op/reader.h"
#include "op/tree.h"

// What an operator with kernels is good for beyond one call: `linear`, which its derivatives are
// made of, and `batch`, which tells how many calls become one.

bool batch_read_linear(struct reader *r)
{
    struct lexer *lx = &r->lx;
    struct op *op = r->op;
    if (op->n_linear == OP_MAX_LINEAR)
        return lex_fail(lx, "more than %d 'linear' lines", OP_MAX_LINEAR);
    do {
        int tensor;
        if (!reader_take_tensor(r, &tensor))
            return false;
        if (tensor >= TENSOR_OUTPUT || op->inputs[tensor].in_place || !reader_is_float(r, tensor))
            return lex_fail(lx, "'%s' is no input of a floating dtype that is left as it is",
                            body_tensor_name(op, tensor));
        op->linear[op->n_linear] |= 1u << tensor;
    } while (lx->token.kind == TOKEN_NAME);
    op->n_linear++;
    return lex_expect_end(lx);
}

// A way to take a batch, and the dimension that each tensor has it in.
static struct op_batch *add_batch(struct op *op, bool folds)
{
    struct op_batch *batch = &op->batches[op->n_batches++];
    batch->folds = folds;
    memset(batch->inputs, OP_NO_BATCH, sizeof batch->inputs);
    memset(batch->outputs, OP_NO_BATCH, sizeof batch->outputs);
    memset(batch->saved, OP_NO_BATCH, sizeof batch->saved);
    return batch;
}

bool batch_read(struct reader *r)
{
    struct lexer *lx = &r->lx;
    if (r->n_batches == OP_MAX_BATCHES)
        return lex_fail(lx, "more than %d 'batch' lines", OP_MAX_BATCHES);
    struct batch_line *line = &r->batches[r->n_batches++];
    *line = (struct batch_line){ .line = lx->line };
    do {
        const struct symbol *s = scope_expect(&r->scope, lx, "the name of a dimension",
                                              "a dimension");
        if (!s)
            return false;
        if (s->kind != SYMBOL_SIZE || line->n == OP_MAX_RANK)
            return lex_fail(lx, "'%s' is %s, expected a dimension of an input", s->name,
                            symbol_describe(s->kind));
        line->names[line->n++] = arena_strndup(r->arena, s->name, strlen(s->name));
        lex_next(lx);
    } while (lx->token.kind != TOKEN_END);
    return true;
}

static bool is_named(const struct batch_line *line, const struct shape_dim *dim)
{
    for (int i = 0; i < line->n; i++)
        if (dim->kind != DIM_PACK && strcmp(dim->text, line->names[i]) == 0)
            return true;
    return false;
}

// The one dimension of a tensor that the line names; behind a pack counted from the end.
static bool find_named(struct reader *r, const struct batch_line *line, int tensor, int8_t *out)
{
    const struct shape *shape = reader_find_shape(r, tensor);
    for (int d = 0; shape && d < shape->n; d++) {
        if (!is_named(line, &shape->dims[d]))
            continue;
        if (*out != OP_NO_BATCH) {
            r->lx.line = line->line;
            return lex_fail(&r->lx, "%s has the batch in two dimensions: %s",
                            body_tensor_name(r->op, tensor), shape->text);
        }
        *out = (int8_t)(shape->pack >= 0 && shape->pack < d ? d - shape->n : d);
    }
    return true;
}

static bool find_begun(struct reader *r, const void *pack, int tensor, int8_t *out)
{
    const struct shape *shape = reader_find_shape(r, tensor);
    if (shape && shape->pack == 0 && shape->dims[0].slot == *(const int *)pack)
        *out = 0;
    return true;
}

typedef bool find_place(struct reader *r, const void *of, int tensor, int8_t *out);

static bool find_line(struct reader *r, const void *of, int tensor, int8_t *out)
{
    return find_named(r, of, tensor, out);
}

static bool place_all(struct reader *r, struct op_batch *batch, find_place *find, const void *of)
{
    const struct op *op = r->op;
    for (int i = 0; i < op->n_inputs; i++)
        if (!find(r, of, i, &batch->inputs[i]))
            return false;
    for (int o = 0; o < op->n_outputs; o++)
        if (!find(r, of, TENSOR_OUTPUT + o, &batch->outputs[o]))
            return false;
    for (int t = 0, n = 0; t < r->body->n_temps; t++)
        if (r->temps[t].saved && !find(r, of, TENSOR_TEMP + t, &batch->saved[n++]))
            return false;
    return true;
}

static bool check_batch(struct reader *r, const struct op_batch *batch, int line)
{
    r->lx.line = line;
    for (int o = 0; o < r->op->n_outputs; o++)
        if (batch->outputs[o] == OP_NO_BATCH)
            return lex_fail(&r->lx, "'batch', but %s has none of these dimensions",
                            r->op->outputs[o].name);
    return true;
}

// Shapes that begin with the same pack take a batch as one dimension more of it.
static bool add_packs(struct reader *r)
{
    struct op *op = r->op;
    const struct shape *first = op->n_outputs > 0 ? reader_find_shape(r, TENSOR_OUTPUT) : NULL;
    if (!first || first->pack != 0)
        return true;
    int pack = first->dims[0].slot;
    struct op_batch *batch = add_batch(op, false);
    place_all(r, batch, find_begun, &pack);
    for (int o = 0; o < op->n_outputs; o++)
        if (batch->outputs[o] == OP_NO_BATCH) {
            op->n_batches--;
            break;
        }
    return true;
}

// `seen`: slots whose lets do not; a let may be read any number of times.
static bool reads_shape(const struct reader *r, const struct node *n, bool seen[ENV_MAX_SLOTS])
{
    const struct node *let = n->kind == NODE_SLOT && !seen[n->a]
                                 ? body_find_let(r->rules, r->body->n_rules, n->a)
                                 : NULL;
    bool reads = n->kind == NODE_NUMEL || n->kind == NODE_RANK || n->kind == NODE_SIZE ||
                 n->kind == NODE_STRIDE || (let && reads_shape(r, let, seen));
    if (let)
        seen[n->a] = true;
    for (int i = 0; i < n->n_args && !reads; i++)
        reads = reads_shape(r, n->args[i], seen);
    return reads;
}

// Formulas take a batch as a dimension that broadcasts, unless they ask for shapes.
static void add_broadcast(struct reader *r)
{
    bool seen[ENV_MAX_SLOTS] = { false };
    for (int v = 0; v < r->formulas->n_values; v++)
        if (reads_shape(r, r->formulas->values[v].expr->root, seen))
            return;
    for (int i = 0; i < r->formulas->n_overs; i++) {
        const struct expr *over = r->formulas->overs[i].expr;
        if (!over || reads_shape(r, over->root, seen)) // over all there is
            return;
    }
    struct op_batch *batch = add_batch(r->op, false);
    memset(batch->inputs, 0, sizeof batch->inputs);
    memset(batch->outputs, 0, sizeof batch->outputs);
}

static bool check_linear(struct reader *r)
{
    const struct op *op = r->op;
    r->lx.line = r->op_line;
    if (op->n_linear == 0)
        return true;
    for (int i = 0; i < op->n_inputs; i++)
        for (int k = 0; k < op->n_linear; k++)
            if ((op->linear[k] >> i & 1) && !op->inputs[i].differentiable)
                return lex_fail(&r->lx, "linear in '%s', but no backward makes grad_%s",
                                op->inputs[i].name, op->inputs[i].name);
    for (int t = 0; t < r->body->n_temps; t++)
        if (r->temps[t].saved)
            return lex_fail(&r->lx,
                            "'linear' beside 'saved %s': what is linear keeps its inputs "
                            "alone",
                            r->temps[t].name);
    for (int o = 0; o < op->n_outputs; o++)
        if (op->outputs[o].used_backward)
            return lex_fail(&r->lx,
                            "'linear', but backward reads %s: what is linear keeps its "
                            "inputs alone",
                            op->outputs[o].name);
    return true;
}

bool batch_end(struct reader *r)
{
    if (r->formulas)
        add_broadcast(r);
    if (r->has_view || r->formulas)
        return true;
    for (int i = 0; i < r->n_batches; i++) {
        struct op_batch *batch = add_batch(r->op, true);
        if (!place_all(r, batch, find_line, &r->batches[i]) ||
            !check_batch(r, batch, r->batches[i].line))
            return false;
    }
    return add_packs(r) && check_linear(r);
}
