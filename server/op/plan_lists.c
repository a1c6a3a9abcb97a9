#include "op/builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "op/formula.h"
#include "op/rules.h"

// Operators of lists: what the header says, it says of one tensor of each list. So a plan is made
// place by place, and the launches of all places that differ in nothing but tensors and their
// sizes become one, up to what its arguments can carry.

// What builder.h keeps of tensors, of one place.
struct member_marks {
    int operand_of[TENSOR_COUNT];
    bool pending[TENSOR_COUNT], covered[TENSOR_COUNT];
};

int plan_lists_length(const struct plan_lists *lists)
{
    int n = -1;
    for (int i = 0; lists && i < OP_MAX_INPUTS && n < 0; i++)
        n = lists->n[i];
    return n < 0 ? 0 : n;
}

struct plan_lists *plan_lists_copy(const struct plan_lists *lists)
{
    size_t n = 0;
    for (int i = 0; lists && i < OP_MAX_INPUTS; i++)
        n += lists->n[i] > 0 ? (size_t)lists->n[i] : 0;
    if (!lists)
        return NULL;
    struct plan_lists *copy = mem_alloc(
        sizeof *copy + n * (sizeof(struct tensor_desc) + sizeof(struct tensor_desc *)));
    struct tensor_desc *desc = (struct tensor_desc *)(copy + 1);
    const struct tensor_desc **at = (const struct tensor_desc **)(desc + n);
    *copy = *lists;
    for (int i = 0; i < OP_MAX_INPUTS; i++) {
        copy->of[i] = at;
        for (int k = 0; k < lists->n[i]; k++) {
            *desc = *lists->of[i][k];
            *at++ = desc++;
        }
    }
    return copy;
}

// --- the place at hand

static bool check_lists(struct builder *b, const struct plan_request *request)
{
    const struct op *op = request->op;
    int first = -1;
    for (int i = 0; i < op->n_inputs; i++) {
        int n = request->lists ? request->lists->n[i] : -1;
        if (!op->inputs[i].list)
            continue;
        if (n < 0 && !op->inputs[i].optional)
            return op_fail(b->err, "%s is missing, expected a list of tensors", op->inputs[i].name);
        if (n < 0)
            continue;
        if (n > PLAN_MAX_MEMBERS)
            return op_fail(b->err, "%s has %d tensors, expected at most %d", op->inputs[i].name, n,
                           PLAN_MAX_MEMBERS);
        if (first < 0)
            first = i;
        if (n != request->lists->n[first])
            return op_fail(b->err, "%s has %d tensor%s, %s has %d; expected as many in each list",
                           op->inputs[i].name, n, PLURAL_S(n), op->inputs[first].name,
                           request->lists->n[first]);
    }
    b->n_members = first < 0 ? 0 : request->lists->n[first];
    for (int o = 0; b->n_members == 0 && o < op->n_outputs; o++)
        if (!op->outputs[o].list)
            return op_fail(b->err, "the lists are empty, expected a tensor to make %s of",
                           op->outputs[o].name);
    return true;
}

bool builder_is_member(const struct builder *b, int tensor)
{
    const struct op *op = b->whole->op;
    if (tensor >= TENSOR_TEMP && tensor < TENSOR_GRAD_OUTPUT)
        return op->body->formulas != NULL; // `scratch` is for all, theirs has its own size
    return body_is_list(op, tensor) || (b->parted && tensor >= TENSOR_GRAD_INPUT);
}

bool builder_is_listed(const struct builder *b, const struct step *steps, int n)
{
    bool listed = false;
    for (int i = 0; i < n && !listed; i++) {
        listed = steps[i].chunk ||
                 (steps[i].kind == STEP_ZERO && builder_is_member(b, steps[i].tensor));
        for (int a = 0; a < steps[i].n_args; a++)
            listed = listed || (steps[i].args[a].tensor >= 0 &&
                                builder_is_member(b, steps[i].args[a].tensor));
    }
    return listed;
}

static void copy_marks(struct builder *b, struct member_marks *m, bool back)
{
    for (int t = 0; t < TENSOR_COUNT; t++) {
        if (!builder_is_member(b, t))
            continue;
        if (!back) {
            m->operand_of[t] = b->operand_of[t];
            m->pending[t] = b->pending[t];
            m->covered[t] = b->covered[t];
            continue;
        }
        b->operand_of[t] = m->operand_of[t];
        b->pending[t] = m->pending[t];
        b->covered[t] = m->covered[t];
    }
}

// What is made once for all places has one shape.
static bool check_single(struct builder *b, const struct tensor_desc *before,
                         const struct tensor_desc *now, int tensor)
{
    char a[320], c[320];
    if (builder_is_member(b, tensor) || tensor_desc_same(before, now))
        return true;
    tensor_desc_format(before, a, sizeof a);
    tensor_desc_format(now, c, sizeof c);
    return op_fail(b->err, "%s would be %s at [0] of the lists, %s at [%d]; expected one shape",
                   body_tensor_name(b->whole->op, tensor), a, c, b->member);
}

static bool check_singles(struct builder *b, const struct env *before)
{
    const struct op *op = b->whole->op;
    for (int o = 0; o < op->n_outputs; o++)
        if (!check_single(b, &before->outputs[o], &b->env.outputs[o], TENSOR_OUTPUT + o))
            return false;
    for (int t = 0; !op->body->formulas && t < op->body->n_temps; t++)
        if (!check_single(b, &before->temps[t], &b->env.temps[t], TENSOR_TEMP + t))
            return false;
    return true;
}

bool builder_set_member(struct builder *b, int member)
{
    struct plan_request *r = b->at_member;
    if (b->member == member)
        return true;
    if (b->member >= 0)
        copy_marks(b, &b->marks[b->member], false);
    copy_marks(b, &b->marks[member], true);
    b->member = member;
    for (int i = 0; i < r->op->n_inputs; i++) {
        if (!r->op->inputs[i].list || b->whole->lists->n[i] < 0)
            continue;
        r->inputs[i] = *b->whole->lists->of[i][member];
        r->inputs[i].dtype = b->whole->inputs[i].dtype;
    }
    bool ok = rules_apply(r, &b->env, b->err);
    b->env.wanted = builder_wanted(b->whole);
    return ok || opd_err_prefix(b->err, "at [%d]", member);
}

// All that the caller gets is listed first. Gradients that come for a list come for all of it.
static void list_results(struct builder *b)
{
    for (int t = TENSOR_OUTPUT; t < TENSOR_COUNT; t++)
        if (builder_is_result(b, t) && (t < TENSOR_TEMP || t >= TENSOR_GRAD_INPUT))
            builder_operand(b, t);
    for (int o = 0; b->whole->direction == PLAN_BACKWARD && o < b->whole->op->n_outputs; o++)
        b->pending[TENSOR_GRAD_OUTPUT + o] = b->whole->grad_absent >> o & 1;
}

static void part_totals(struct builder *b)
{
    const struct op *op = b->whole->op;
    b->parted = b->n_members > 0 && op->body->formulas && b->whole->direction == PLAN_BACKWARD;
    for (int i = 0; b->parted && i < op->n_inputs; i++) {
        int t = TENSOR_GRAD_INPUT + i;
        if (op->inputs[i].list)
            continue;
        b->totals[i] = b->operand_of[t];
        for (int k = 0; k < b->n_members; k++)
            b->marks[k].operand_of[t] = -1;
        b->operand_of[t] = -1;
    }
}

bool builder_start_lists(struct builder *b, const struct plan_request *request)
{
    b->whole = request;
    b->member = -1;
    b->reads.of_tensors = READS_PLACE;
    for (int i = 0; i < ENV_MAX_SLOTS; i++)
        b->reads.slots[i] = READS_PLACE;
    if (!check_lists(b, request))
        return false;
    b->at_member = mem_alloc(sizeof *b->at_member);
    *b->at_member = *request;
    b->at_member->lists = NULL;
    b->marks = mem_zalloc((size_t)b->n_members, sizeof *b->marks);
    struct env *first = b->n_members > 1 ? mem_alloc(sizeof *first) : NULL;
    bool ok = true;
    for (int k = 0; k < b->n_members && ok; k++) {
        memset(b->marks[k].operand_of, -1, sizeof b->marks[k].operand_of);
        ok = builder_set_member(b, k) && (k == 0 || check_singles(b, first));
        if (k == 0 && first)
            *first = b->env;
        if (ok)
            list_results(b);
    }
    free(first);
    part_totals(b);
    return ok;
}

// --- launches that become one

// The kernel of one launch at many places: opd::formula_list of opd.cuh. What is in `each` stands
// where the arguments of that launch begin: pointers, and how many elements there are.
struct launch_group {
    struct formula_launch launch; // the first
    char *prelude;
    uint32_t prefix_size, blocks;
    int n, few, most, n_tensors; // tensors of each list: that short arguments have room for, or all
    int places[SIGNATURE_MAX_PARAMS]; // by operand: which of the tensors; some stand twice
    struct buf each, first, slots;    // of struct plan_slot: offsets in `each`
};

static uint32_t round_up(uint32_t n)
{
    return (n + 7) & ~7u;
}

// What a tensor of each list takes of the arguments, but for its first block.
static uint32_t own_size(const struct launch_group *g)
{
    return 8 * ((uint32_t)g->n_tensors + 1);
}

static uint32_t each_size(const struct launch_group *g)
{
    return own_size(g) + 4;
}

// A checked build of a kernel, of any that runs, knows no more slots.
static int find_room(const struct launch_group *g, int args_size)
{
    int room = (args_size - 8 - (int)round_up(g->launch.packed.size)) / (int)each_size(g);
    int most = CHECKED_MAX_SLOTS / g->n_tensors;
    return room < most ? room : most;
}

static bool start_group(struct builder *b, const struct formula_launch *launch, const char *prelude)
{
    struct launch_group *g = b->group;
    g->launch = *launch;
    free(g->prelude);
    g->prelude = mem_strdup(prelude);
    g->prefix_size = 8 * ((uint32_t)launch->packed.n_slots + 1);
    g->n_tensors = 0;
    for (int i = 0; i < launch->packed.n_slots; i++) {
        int same = 0;
        while (launch->packed.slots[same].operand != launch->packed.slots[i].operand)
            same++;
        g->places[i] = same < i ? g->places[same] : g->n_tensors++;
    }
    g->few = find_room(g, OP_MAX_ARGS_SIZE);
    g->most = b->whole->long_args ? find_room(g, OP_LONG_ARGS_SIZE) : g->few;
    g->n = 0;
    g->blocks = 0;
    g->each.size = g->first.size = g->slots.size = 0;
    return g->few > 0 ||
           op_fail(b->err, "the formulas take more than %d bytes of parameters for one tensor",
                   OP_MAX_ARGS_SIZE);
}

static bool joins(const struct launch_group *g, const struct formula_launch *launch,
                  const char *prelude)
{
    const struct packed *a = &g->launch.packed, *b = &launch->packed;
    return g->n > 0 && g->n < g->most && a->size == b->size && a->n_slots == b->n_slots &&
           launch->grid[0] <= INT32_MAX - g->blocks &&
           strcmp(g->launch.kernel, launch->kernel) == 0 && strcmp(g->prelude, prelude) == 0 &&
           memcmp(a->bytes + g->prefix_size, b->bytes + g->prefix_size, a->size - g->prefix_size) ==
               0;
}

static bool join(struct builder *b, const struct formula_launch *launch)
{
    struct launch_group *g = b->group;
    static const uint64_t null = 0;
    for (int i = 0, n = 0; i < launch->packed.n_slots; i++) {
        if (g->places[i] < n)
            continue;
        int tensor = (int)launch->packed.slots[i].operand;
        if (b->pending[tensor] && !builder_zero(b, tensor))
            return false;
        struct plan_slot slot = { .arg_offset = (uint32_t)g->each.size,
                                  .operand = builder_operand(b, tensor) };
        buf_append(&g->slots, &slot, sizeof slot);
        buf_append(&g->each, &null, sizeof null);
        n++;
    }
    buf_append(&g->each, launch->packed.bytes + g->prefix_size - 8, 8); // elements
    buf_append(&g->first, &g->blocks, sizeof g->blocks);
    g->blocks += launch->grid[0];
    g->n++;
    return true;
}

// What the kernel is compiled for: one for all short lists, and one for each power of two. Longer
// arguments take the device longer.
static int choose_capacity(const struct launch_group *g)
{
    int capacity = 1;
    if (g->n <= g->few)
        return g->few;
    while (capacity < g->n)
        capacity *= 2;
    return capacity < g->most ? capacity : g->most;
}

// The arguments, as opd.cuh lays them out.
static uint8_t *pack_group(struct builder *b, int capacity, uint32_t *out_size, uint32_t *out_each)
{
    const struct launch_group *g = b->group;
    uint32_t each = round_up(g->launch.packed.size), n = (uint32_t)g->n;
    uint32_t first = each + (uint32_t)capacity * own_size(g);
    uint32_t count = first + 4 * (uint32_t)capacity;
    uint8_t *args = arena_alloc(b->arena, 1, round_up(count + 4));
    memcpy(args, g->launch.packed.bytes, g->launch.packed.size);
    memcpy(args + each, g->each.bytes, g->each.size);
    memcpy(args + first, g->first.bytes, g->first.size);
    memcpy(args + count, &n, sizeof n);
    *out_size = round_up(count + 4);
    *out_each = each;
    return args;
}

static bool add_group(struct builder *b)
{
    struct launch_group *g = b->group;
    struct plan_step step = { .kind = PLAN_STEP_LAUNCH,
                              .grid = { g->blocks, 1, 1 },
                              .block = { g->launch.block, 1, 1 } };
    struct buf kernel = { 0 };
    int capacity = choose_capacity(g);
    uint32_t each;
    if (g->n == 0)
        return true;
    // "opd::formula_map<F, 4>" becomes "opd::formula_maps<F, 4, CAPACITY, TENSORS, PLACES...>"
    const char *args = strchr(g->launch.kernel, '<');
    buf_printf(&kernel, "opd::formula_maps%.*s, %d, %d", (int)strlen(args) - 1, args, capacity,
               g->n_tensors);
    for (int i = 0; i < g->launch.packed.n_slots; i++)
        buf_printf(&kernel, ", %d", g->places[i]);
    buf_append_str(&kernel, ">");
    step.args = pack_group(b, capacity, &step.args_size, &each);
    step.n_slots = (int)(g->slots.size / sizeof(struct plan_slot));
    step.slots = arena_copy(b->arena, g->slots.bytes, (size_t)step.n_slots, sizeof *step.slots);
    for (int i = 0; i < step.n_slots; i++)
        step.slots[i].arg_offset += each;
    g->n = 0;
    b->prelude = g->prelude;
    builder_note_values(b, &g->launch.packed);
    bool ok = builder_add_kernel(b, &(struct plan_param){ .size = step.args_size }, 1,
                                 buf_str(&kernel), g->launch.line, &step.kernel) &&
              builder_add_step(b, &step);
    b->prelude = NULL;
    buf_finish(&kernel);
    return ok;
}

// --- formulas

struct mapper {
    struct builder *b;
    struct buf text; // what the next kernel of the place at hand is compiled with
    size_t common;   // of that, what all are
};

// A sum is by itself: it reads nothing that a group's launch makes.
static bool add_single(struct builder *b, const struct formula_launch *launch, const char *prelude)
{
    struct plan_step step = { .kind = PLAN_STEP_LAUNCH,
                              .grid = { launch->grid[0], launch->grid[1], 1 },
                              .block = { launch->block, 1, 1 } };
    b->prelude = prelude;
    bool ok = builder_add_launch(b, &step, &launch->packed, launch->kernel, launch->line);
    b->prelude = NULL;
    return ok;
}

static bool add_to_group(struct builder *b, const struct formula_launch *launch,
                         const char *prelude)
{
    return (joins(b->group, launch, prelude) ||
            (add_group(b) && start_group(b, launch, prelude))) &&
           join(b, launch);
}

static bool add_launch(void *data, const struct formula_launch *launch)
{
    static const char map[] = "opd::formula_map<";
    struct mapper *m = data;
    const char *prelude = buf_str(&m->text);
    bool is_map = strncmp(launch->kernel, map, strlen(map)) == 0;
    bool ok = is_map ? add_to_group(m->b, launch, prelude) : add_single(m->b, launch, prelude);
    m->text.size = m->common;
    for (int i = 0; i < launch->n_written; i++)
        m->b->covered[launch->written[i]] = true;
    return ok;
}

bool builder_map_formulas(struct builder *b)
{
    struct mapper m = { .b = b };
    bool ok = true;
    b->group = mem_zalloc(1, sizeof *b->group);
    for (int k = 0; k < b->n_members && ok; k++) {
        m.text.size = 0;
        buf_append_str(&m.text, b->plan->prelude);
        if (b->whole->op->body->formulas->calls_device)
            buf_append_str(&m.text, PLAN_BEHIND_SOURCE);
        m.common = m.text.size;
        ok = builder_set_member(b, k) && formula_plan(&b->env, &m.text, add_launch, &m, b->err);
        for (int t = TENSOR_OUTPUT; t < TENSOR_COUNT; t++)
            b->pending[t] = builder_is_result(b, t) && !b->covered[t]; // sums of nothing
    }
    buf_finish(&m.text);
    return ok && add_group(b);
}

// --- parts of one gradient

enum { JOINED_PARTS = 256 }; // in a launch

// opd::formula_parts of opd-formula.cuh.
struct joined {
    uint64_t n;
    uint32_t n_parts, more;
    uint64_t to, parts[JOINED_PARTS];
};

static bool join_some(struct builder *b, int tensor, int first, int n)
{
    int total = b->totals[tensor - TENSOR_GRAD_INPUT];
    const struct tensor_desc *d = &b->plan->operands[total].desc;
    const char *type = dtype_type(d->dtype), *acc = dtype_acc(d->dtype);
    struct joined *args = arena_alloc(b->arena, 1, sizeof *args);
    *args = (struct joined){ .n = (uint64_t)tensor_desc_numel(d),
                             .n_parts = (uint32_t)n,
                             .more = first > 0 };
    struct plan_step step = { .kind = PLAN_STEP_LAUNCH,
                              .grid = { args->n < 1 << 24 ? (uint32_t)(args->n + 255) / 256
                                                          : 1 << 16,
                                        1, 1 },
                              .block = { b->whole->on_cpu ? 1 : 256, 1, 1 },
                              .args_size = sizeof *args,
                              .args = (uint8_t *)args,
                              .n_slots = n + 1 };
    step.slots = arena_alloc(b->arena, (size_t)n + 1, sizeof *step.slots);
    step.slots[0] = (struct plan_slot){ .arg_offset = offsetof(struct joined, to),
                                        .operand = (uint32_t)total };
    for (int k = 0; k < n; k++) {
        const struct member_marks *m = &b->marks[first + k];
        step.slots[k + 1] = (struct plan_slot){
            .arg_offset = (uint32_t)(offsetof(struct joined, parts) + 8 * (size_t)k),
            .operand = (uint32_t)m->operand_of[tensor],
        };
    }
    const char *kernel = arena_printf(b->arena, "opd::formula_join<%s, %s, %d>", acc, type,
                                      JOINED_PARTS);
    return builder_add_kernel(b, &(struct plan_param){ .size = sizeof *args }, 1, kernel, 0,
                              &step.kernel) &&
           builder_add_step(b, &step);
}

bool builder_join_parts(struct builder *b)
{
    bool ok = true;
    if (!b->parted)
        return true;
    copy_marks(b, &b->marks[b->member], false);
    for (int i = 0; i < b->whole->op->n_inputs; i++) {
        int t = TENSOR_GRAD_INPUT + i;
        if (b->whole->op->inputs[i].list || !(b->env.wanted >> i & 1) ||
            tensor_desc_numel(&b->whole->inputs[i]) == 0)
            continue;
        for (int k = 0; k < b->n_members && ok; k += JOINED_PARTS) {
            int left = b->n_members - k;
            ok = join_some(b, t, k, left < JOINED_PARTS ? left : JOINED_PARTS);
        }
    }
    return ok;
}

void builder_finish_lists(struct builder *b)
{
    if (b->group) {
        free(b->group->prelude);
        buf_finish(&b->group->each);
        buf_finish(&b->group->first);
        buf_finish(&b->group->slots);
    }
    free(b->group);
    free(b->marks);
    free(b->at_member);
}
