#include "op/builder.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

// Launches over tensors of lists, as many at a time as the kernel's struct has room for. Each block
// is a chunk of one tensor; which, it looks up there.

struct chunks {
    struct builder *b;
    const struct step *launch;
    struct plan_step step;
    int64_t size; // elements of a chunk
    uint32_t n_tensors, n_blocks;
    uint32_t max_tensors, max_blocks;
    struct packed *first; // arguments at the first place; nothing is in its arrays
    uint8_t *bytes;       // of this launch
    struct buf slots;     // of this launch: those for all come first
    size_t shared_size;
};

static bool add_shared(struct chunks *c)
{
    for (int i = 0; i < c->first->n_slots; i++) {
        struct plan_slot slot = c->first->slots[i];
        int tensor = (int)slot.operand;
        if (c->b->pending[tensor] && !builder_zero(c->b, tensor))
            return false;
        slot.operand = builder_operand(c->b, tensor);
        buf_append(&c->slots, &slot, sizeof slot);
    }
    c->shared_size = c->slots.size;
    return true;
}

static bool end_launch(struct chunks *c)
{
    struct builder *b = c->b;
    bool any = c->n_blocks > 0;
    c->step.grid[0] = c->n_blocks;
    c->step.args_size = c->first->size;
    c->step.args = arena_copy(b->arena, c->bytes, c->first->size, 1);
    c->step.n_slots = (int)(c->slots.size / sizeof(struct plan_slot));
    c->step.slots = arena_copy(b->arena, c->slots.bytes, (size_t)c->step.n_slots,
                               sizeof *c->step.slots);
    memcpy(c->bytes, c->first->bytes, c->first->size);
    c->slots.size = c->shared_size;
    c->n_tensors = c->n_blocks = 0;
    if (any)
        builder_note_values(b, c->first);
    return !any || builder_add_step(b, &c->step);
}

static bool put(struct chunks *c, enum chunk_role role, uint32_t at, int64_t value)
{
    for (int i = 0; i < c->first->n_arrays; i++) {
        const struct argument *arg = c->first->arrays[i].arg;
        uint8_t *bytes = c->bytes + c->first->arrays[i].offset + at * arg->type.size;
        if (arg->role == role &&
            !cnumber_store(arg->type, (union expr_value){ .i = value }, EXPR_INT, bytes))
            return op_fail(c->b->err,
                           "kernel %s: '%s' has elements of type %s, %" PRId64 " does not fit",
                           c->launch->name, arg->param->name, arg->param->type, value);
    }
    return true;
}

static bool add_tensor(struct chunks *c, int64_t numel)
{
    struct builder *b = c->b;
    uint32_t at = c->n_tensors++;
    for (int i = 0; i < c->first->n_arrays; i++) {
        const struct packed_array *a = &c->first->arrays[i];
        for (int l = 0; a->arg->role == CHUNK_ADDRESSES && l < a->arg->n_lists; l++) {
            int tensor = c->launch->lists[a->arg->list + l];
            if (!env_has_memory(&b->env, tensor))
                continue;
            struct plan_slot slot = { .arg_offset = a->offset +
                                                    8 * ((uint32_t)l * a->arg->n + at),
                                      .operand = builder_operand(b, tensor),
                                      .reads = !a->arg->param->writes,
                                      .writes = a->arg->param->writes };
            buf_append(&c->slots, &slot, sizeof slot);
        }
    }
    return put(c, CHUNK_SIZES, at, numel) && (at > 0 || put(c, CHUNK_START, 0, b->member));
}

// Of the tensors at the place at hand: also where they are empty, so that kernels can count them.
// What a launch has no more blocks for goes on in the next.
static bool add_blocks(struct chunks *c, int64_t numel)
{
    if ((c->n_tensors == c->max_tensors && !end_launch(c)) || !add_tensor(c, numel))
        return false;
    for (int64_t i = 0; i < numel / c->size + (numel % c->size > 0); i++) {
        if (c->n_blocks == c->max_blocks && (!end_launch(c) || !add_tensor(c, numel)))
            return false;
        if (!put(c, CHUNK_TENSORS, c->n_blocks, c->n_tensors - 1) ||
            !put(c, CHUNK_NUMBERS, c->n_blocks, i))
            return false;
        c->n_blocks++;
    }
    return true;
}

// What the kernel may read before it writes it; and the elements that all of them have, but for
// lists whose addresses stand in an array of their own.
static bool prepare_place(struct chunks *c, int64_t *numel)
{
    struct builder *b = c->b;
    const struct step *launch = c->launch;
    *numel = tensor_desc_numel(env_tensor(&b->env, launch->lists[0]));
    for (int i = 0; i < c->first->n_arrays; i++) {
        const struct argument *arg = c->first->arrays[i].arg;
        for (int l = 0; arg->role == CHUNK_ADDRESSES && l < arg->n_lists; l++) {
            int tensor = launch->lists[arg->list + l];
            int64_t n = tensor_desc_numel(env_tensor(&b->env, tensor));
            if (arg->n_lists > 1 && n != *numel && env_has_memory(&b->env, tensor))
                return op_fail(b->err,
                               "at [%d]: %s has %" PRId64 " element%s, %s has %" PRId64
                               "; expected as many, for kernel %s takes both by chunks",
                               b->member, body_tensor_name(b->env.request->op, tensor), n,
                               PLURAL_S(n), body_tensor_name(b->env.request->op, launch->lists[0]),
                               *numel, launch->name);
            builder_clear_read(b, tensor);
            if (b->pending[tensor] && !builder_zero(b, tensor))
                return false;
            b->covered[tensor] = b->covered[tensor] || tensor >= TENSOR_OUTPUT;
        }
    }
    return true;
}

// What is not of the lists is passed once for all: is it the same at each place?
static bool check_same(struct chunks *c)
{
    struct packed *p = &c->b->packed;
    if (!params_pack(c->launch, &c->b->env, p, c->b->err))
        return false;
    for (int i = 0; i < p->n_params; i++)
        if (memcmp(p->bytes + p->params[i].offset, c->first->bytes + p->params[i].offset,
                   p->params[i].size) != 0)
            return op_fail(c->b->err,
                           "kernel %s: '%s' differs between [0] and [%d] of the lists; expected "
                           "one value for all chunks",
                           c->launch->name, p->params[i].name, c->b->member);
    return true;
}

static void find_room(struct chunks *c)
{
    for (int i = 0; i < c->first->n_arrays; i++) {
        const struct argument *arg = c->first->arrays[i].arg;
        if (arg->role == CHUNK_ADDRESSES)
            c->max_tensors = arg->n;
        if (arg->role == CHUNK_TENSORS)
            c->max_blocks = arg->n;
    }
}

static bool add_chunks(struct builder *b, const struct step *launch, struct plan_step *step,
                       const char *expr)
{
    struct chunks c = { .b = b, .launch = launch };
    int64_t numel;
    if (!expr_eval_int(launch->chunk, &b->env, &c.size, b->err))
        return false;
    if (c.size < 1)
        return op_fail(b->err, "kernel %s: chunks of %" PRId64 " elements, expected at least 1",
                       launch->name, c.size);
    if (!builder_add_kernel(b, b->packed.params, b->packed.n_params, expr, launch->line,
                            &step->kernel))
        return false;
    c.step = *step;
    c.first = mem_alloc(sizeof *c.first);
    *c.first = b->packed;
    c.bytes = mem_alloc(c.first->size);
    memcpy(c.bytes, c.first->bytes, c.first->size);
    find_room(&c);
    bool ok = add_shared(&c);
    for (int k = 0; k < b->n_members && ok; k++)
        ok = builder_set_member(b, k) && check_same(&c) && prepare_place(&c, &numel) &&
             add_blocks(&c, numel);
    ok = ok && end_launch(&c);
    buf_finish(&c.slots);
    free(c.bytes);
    free(c.first);
    return ok;
}

static bool fail_places(const struct builder *b, const struct step *launch, const char *what)
{
    return op_fail(b->err, "kernel %s: %s; expected one launch for all chunks", launch->name, what);
}

bool builder_add_chunks(struct builder *b, const struct step *launch, struct plan_step *step,
                        const char *expr)
{
    const struct plan_step *first = &b->chunked.step;
    if (b->member > 0 && b->chunked.launch != launch)
        return fail_places(b, launch, "its condition holds at some places of the lists only");
    b->chunked.n_places++;
    if (b->member > 0)
        return (memcmp(first->block, step->block, sizeof step->block) == 0 &&
                first->shared_size == step->shared_size && strcmp(b->chunked.kernel, expr) == 0) ||
               fail_places(b, launch, "block, shared or template arguments differ between places");
    b->chunked.launch = launch;
    b->chunked.step = *step;
    b->chunked.kernel = arena_printf(b->arena, "%s", expr);
    return add_chunks(b, launch, step, expr);
}

bool builder_end_chunks(struct builder *b)
{
    const struct step *launch = b->chunked.launch;
    int n = b->chunked.n_places;
    b->chunked.launch = NULL;
    b->chunked.n_places = 0;
    return !launch || n == b->n_members ||
           fail_places(b, launch, "its condition holds at some places of the lists only");
}
