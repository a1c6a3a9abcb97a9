#include <inttypes.h>
#include <string.h>

#include "op/builder.h"

enum { MAX_KERNEL = 1024 }; // characters of a kernel with its template arguments

static bool fail_extent(const struct builder *b, const struct step *launch, const char *what,
                        int axis, int64_t value, int64_t low, int64_t high)
{
    return op_fail(b->err, "kernel %s: %s %c is %" PRId64 ", expected %" PRId64 " to %" PRId64,
                   launch->name, what, "xyz"[axis], value, low, high);
}

static bool eval_block(struct builder *b, const struct step *launch, uint32_t block[3])
{
    int64_t product = 1;
    block[0] = launch->n_block ? 1 : OP_BLOCK_SIZE;
    block[1] = block[2] = 1;
    for (int i = 0; i < launch->n_block; i++) {
        int64_t value, most = i < 2 ? 1024 : 64;
        if (!expr_eval_int(launch->block[i], &b->env, &value, b->err))
            return false;
        if (value < 1 || value > most)
            return fail_extent(b, launch, "block", i, value, 1, most);
        block[i] = (uint32_t)value;
        product *= value;
    }
    return product <= 1024 ||
           op_fail(b->err, "kernel %s: block has %" PRId64 " threads, expected at most 1024",
                   launch->name, product);
}

// The tensor for each of whose elements a launch without a grid has one thread.
static const struct tensor_desc *main_result(const struct builder *b, const struct section *section)
{
    const struct op *op = b->env.request->op;
    for (int i = 0; section->backward && i < op->n_inputs; i++)
        if (section->grads & b->env.wanted & 1u << i)
            return env_tensor(&b->env, TENSOR_GRAD_INPUT + i);
    if (op->n_outputs > 0)
        return &b->env.outputs[0];
    for (int i = 0; i < op->n_inputs; i++)
        if (op->inputs[i].in_place)
            return env_tensor(&b->env, i);
    return env_tensor(&b->env, 0);
}

// The extents as written, or the number of threads where nothing is written.
static bool eval_grid(struct builder *b, const struct section *section, const struct step *launch,
                      int64_t extents[3])
{
    extents[0] = extents[1] = extents[2] = 1;
    if (launch->chunk)
        return true; // as many as fit
    if (launch->threads) {
        if (!expr_eval_int(launch->threads, &b->env, &extents[0], b->err))
            return false;
        return extents[0] >= 0 ||
               op_fail(b->err, "kernel %s: threads is %" PRId64 ", expected at least 0",
                       launch->name, extents[0]);
    }
    if (launch->n_grid == 0)
        extents[0] = tensor_desc_numel(main_result(b, section));
    for (int i = 0; i < launch->n_grid; i++)
        if (!expr_eval_int(launch->grid[i], &b->env, &extents[i], b->err))
            return false;
    return true;
}

static bool check_grid(struct builder *b, const struct step *launch, int64_t extents[3],
                       const uint32_t block[3], uint32_t grid[3])
{
    if (launch->n_grid == 0) {
        int64_t threads = (int64_t)block[0] * block[1] * block[2];
        extents[0] = extents[0] / threads + (extents[0] % threads > 0);
    }
    for (int i = 0; i < 3; i++) {
        int64_t most = i == 0 ? INT32_MAX : 65535;
        if (extents[i] < 0 || extents[i] > most)
            return fail_extent(b, launch, "grid", i, extents[i], 0, most);
        grid[i] = (uint32_t)extents[i];
    }
    return true;
}

static bool eval_shared(struct builder *b, const struct step *launch, uint32_t *out)
{
    int64_t size = 0;
    if (launch->shared && !expr_eval_int(launch->shared, &b->env, &size, b->err))
        return false;
    if (size < 0 || size > OP_MAX_SHARED_SIZE)
        return op_fail(b->err, "kernel %s: shared is %" PRId64 " bytes, expected 0 to %d",
                       launch->name, size, OP_MAX_SHARED_SIZE);
    *out = (uint32_t)size;
    return true;
}

// "name<scalar_t, 3>"
static bool format_kernel(struct builder *b, const struct step *launch, struct buf *out)
{
    if (launch->types)
        buf_printf(out, "static_cast<void (*)(%s)>(", launch->types);
    buf_append_str(out, launch->name);
    for (int i = 0; i < launch->n_template_args; i++) {
        const struct template_arg *arg = &launch->template_args[i];
        int64_t value;
        if (arg->expr && !expr_eval_int(arg->expr, &b->env, &value, b->err))
            return false;
        buf_append_str(out, i ? ", " : "<");
        if (arg->expr)
            buf_printf(out, "%" PRId64, value);
        else
            buf_append_str(out, arg->text);
    }
    if (launch->is_template)
        buf_append_str(out, launch->n_template_args ? ">" : "<>");
    if (launch->types)
        buf_append_str(out, ")");
    return out->size < MAX_KERNEL ||
           op_fail(b->err, "kernel %s: its template arguments are too long", launch->name);
}

static void cover_written(struct builder *b, const struct step *launch)
{
    for (int i = 0; i < launch->n_args; i++)
        if (launch->args[i].tensor >= 0 && launch->args[i].param->writes)
            b->covered[launch->args[i].tensor] = true;
}

static void clear_read(struct builder *b, const struct step *launch)
{
    for (int i = 0; i < launch->n_args; i++)
        if (launch->args[i].tensor >= 0 && launch->args[i].param->reads)
            builder_clear_read(b, launch->args[i].tensor);
}

// What it would have written is zero, unless another writes it.
void builder_drop_launch(struct builder *b, const struct step *launch)
{
    for (int i = 0; i < launch->n_args; i++) {
        int t = launch->args[i].tensor;
        if (t >= 0 && launch->args[i].param->writes && builder_is_fresh(b, t) && !b->covered[t])
            b->pending[t] = env_has_tensor(&b->env, t);
    }
}

// The gradients that nobody wants, but that the kernel writes all the same.
static uint32_t find_unasked(const struct builder *b, const struct step *launch)
{
    uint32_t found = 0;
    for (int i = 0; i < launch->n_args; i++) {
        const struct argument *arg = &launch->args[i];
        int input = arg->tensor - TENSOR_GRAD_INPUT;
        if (input >= 0 && arg->param->writes && !arg->param->asked &&
            dtype_is_float(env_tensor(&b->env, arg->tensor)->dtype))
            found |= 1u << input;
    }
    return found & ~b->env.wanted;
}

// Of a kernel that takes structs what the compiler must find true of them stands behind the source.
// It is this kernel's alone: others, of this plan or of the next, are compiled once all the same.
static const char *find_prelude(struct builder *b, const struct step *launch, const char *kernel)
{
    const struct plan *plan = b->plan;
    const char *found = NULL;
    bool any = false;
    for (int i = 0; i < launch->n_args && !any; i++)
        any = launch->args[i].param->kind == PARAM_STRUCT;
    for (int i = 0; any && i < plan->n_kernels && !found; i++)
        if (strcmp(plan->kernels[i].expr, kernel) == 0)
            found = plan->kernels[i].prelude;
    if (!any || found)
        return found;
    struct buf checks = { 0 };
    params_check_structs(launch, &b->env, kernel, &checks);
    found = arena_printf(b->arena, "%s%s%s", plan->prelude, PLAN_BEHIND_SOURCE, buf_str(&checks));
    buf_finish(&checks);
    return found;
}

bool builder_launch(struct builder *b, const struct section *section, const struct step *launch)
{
    struct plan_step step = { .kind = PLAN_STEP_LAUNCH };
    int64_t extents[3];
    if (!eval_grid(b, section, launch, extents))
        return false;
    if (extents[0] == 0 || extents[1] == 0 || extents[2] == 0) {
        builder_drop_launch(b, launch);
        return true;
    }
    if (!eval_block(b, launch, step.block) ||
        !check_grid(b, launch, extents, step.block, step.grid) ||
        !eval_shared(b, launch, &step.shared_size))
        return false;
    clear_read(b, launch);
    b->env.unasked = find_unasked(b, launch);
    struct buf kernel = { 0 };
    bool again = launch->chunk && b->member > 0; // the first was for all places
    bool ok = (again || params_pack(launch, &b->env, &b->packed, b->err)) &&
              format_kernel(b, launch, &kernel);
    if (ok && !again)
        b->prelude = find_prelude(b, launch, buf_str(&kernel));
    ok = ok &&
         (launch->chunk ? builder_add_chunks(b, launch, &step, buf_str(&kernel))
                        : builder_add_launch(b, &step, &b->packed, buf_str(&kernel), launch->line));
    b->prelude = NULL;
    buf_finish(&kernel);
    if (ok)
        cover_written(b, launch);
    return ok;
}
