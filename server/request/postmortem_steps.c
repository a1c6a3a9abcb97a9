#include "request/postmortem_steps.h"

#include <stdlib.h>
#include <string.h>

#include "executor/devuse.h"

static void use_all(struct steps_again *s, dev_use_fn *fn)
{
    dev_each_use_of(s->bytes.bytes, s->bytes.size, s->n, fn, s);
}

// --- the pieces

static bool add_piece(void *data, const struct dev_use *use)
{
    struct steps_again *s = data;
    size_t n = s->n_pieces++;
    if ((n & (n - 1)) == 0) // full at 0, 1, 2, 4, ...
        s->pieces = mem_realloc(s->pieces, n ? 2 * n : 1, sizeof *s->pieces);
    s->pieces[n] = (struct steps_piece){ .region = *use->region,
                                         .offset = *use->offset,
                                         .size = use->size };
    return true;
}

static int compare_pieces(const void *a, const void *b)
{
    const struct steps_piece *p = a, *q = b;
    if (p->region != q->region)
        return p->region < q->region ? -1 : 1;
    return (p->offset > q->offset) - (p->offset < q->offset);
}

static void merge_pieces(struct steps_again *s)
{
    size_t n = 0;
    if (s->n_pieces > 0)
        qsort(s->pieces, s->n_pieces, sizeof *s->pieces, compare_pieces);
    for (size_t i = 0; i < s->n_pieces; i++) {
        const struct steps_piece *p = &s->pieces[i];
        struct steps_piece *last = n > 0 ? &s->pieces[n - 1] : NULL;
        bool meets = last && last->region == p->region && p->offset < last->offset + last->size;
        uint64_t end = p->offset + p->size;
        if (!meets)
            s->pieces[n++] = *p;
        else if (end > last->offset + last->size)
            last->size = end - last->offset;
    }
    s->n_pieces = n;
}

// --- the steps

static bool is_run(const struct dev_step *step)
{
    return step->type == DEV_STEP_LAUNCH || step->type == DEV_STEP_FILL ||
           step->type == DEV_STEP_COPY || step->type == DEV_STEP_MATMUL;
}

bool steps_again_take(struct steps_again *s, const void *command, uint64_t step, bool alone)
{
    const struct dev_command *header = command;
    const uint8_t *at = (const uint8_t *)(header + 1);
    bool found = false;
    *s = (struct steps_again){ 0 };
    for (uint64_t i = 0; i < header->size && !(found && alone); i++) {
        const struct dev_step *next = (const struct dev_step *)(const void *)at;
        if (!found && i >= step && next->type == DEV_STEP_LAUNCH) {
            s->first = i;
            found = true;
        }
        if (found && !is_run(next))
            break;
        if (found) {
            buf_append(&s->bytes, at, next->size);
            s->n++;
        }
        at += next->size;
    }
    use_all(s, add_piece);
    merge_pieces(s);
    return found;
}

void steps_again_finish(struct steps_again *s)
{
    buf_finish(&s->bytes);
    free(s->pieces);
    *s = (struct steps_again){ 0 };
}

struct dev_launch *steps_again_launch(struct steps_again *s, uint64_t *step)
{
    uint8_t *at = s->bytes.bytes;
    for (uint64_t i = 0; i < s->n; i++) {
        struct dev_step *next = (struct dev_step *)(void *)at;
        if (i >= *step && next->type == DEV_STEP_LAUNCH) {
            *step = i;
            return (struct dev_launch *)(void *)next;
        }
        at += next->size;
    }
    return NULL;
}

// --- on copies

// They are sorted, and one has it.
static const struct steps_piece *find_piece(const struct steps_again *s, uint32_t region,
                                            uint64_t offset)
{
    const struct steps_piece place = { .region = region, .offset = offset };
    size_t low = 0, high = s->n_pieces;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (compare_pieces(&s->pieces[middle], &place) <= 0)
            low = middle;
        else
            high = middle;
    }
    return &s->pieces[low];
}

static bool move(void *data, const struct dev_use *use)
{
    const struct steps_piece *p = find_piece(data, *use->region, *use->offset);
    *use->offset = *use->offset - p->offset + p->copy_offset;
    *use->region = p->copy_region;
    if (use->slot) {
        use->slot->low = p->copy_offset;
        use->slot->high = p->copy_offset + p->size;
        use->slot->pad = 0;
    }
    return true;
}

void steps_again_move(struct steps_again *s)
{
    use_all(s, move);
}

bool steps_again_origin(const struct steps_again *s, const struct dev_slot *slot, int64_t offset,
                        uint32_t *out_region, int64_t *out_offset)
{
    for (const struct steps_piece *p = s->pieces; p < s->pieces + s->n_pieces; p++) {
        if (p->copy_region != slot->region || slot->offset < p->copy_offset ||
            slot->offset - p->copy_offset >= p->size)
            continue;
        *out_region = p->region;
        return !__builtin_add_overflow((int64_t)(slot->offset - p->copy_offset + p->offset), offset,
                                       out_offset);
    }
    return false;
}
