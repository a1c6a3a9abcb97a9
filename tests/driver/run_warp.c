#include "run.h"

#include <string.h>

// What threads do together: barriers of a block, and what a warp's lanes exchange.

static const struct ptx_type word = { K_BITS, 4, false };

// --- barriers

// bar.sync id, count; bar.red d, id, count, p; bar.arrive id, count; bar.warp.sync mask
void run_bar(struct thread *t, const struct ins *i)
{
    if (i->sub == B_WARP) {
        run_gather(t, i);
        return;
    }
    bool reduces = i->sub == B_POPC || i->sub == B_AND || i->sub == B_OR;
    int first = reduces ? 1 : 0;
    t->barrier = (int)(t->r[i->o[first]] % N_BARRIERS);
    t->barrier_count = i->n > (reduces ? 3 : 1) ? (uint32_t)t->r[i->o[first + 1]] : 0;
    if (i->sub == B_ARRIVE) {
        t->block->arrived[t->barrier]++;
        return;
    }
    t->waiting = i;
    t->state = AT_BARRIER;
}

static void release(struct block *b, int id)
{
    uint32_t n = 0, are = 0;
    for (uint32_t k = 0; k < b->n_threads; k++) {
        const struct thread *t = &b->threads[k];
        if (t->state != AT_BARRIER || t->barrier != id)
            continue;
        n++;
        are += t->waiting->n > 1 && (t->r[t->waiting->o[t->waiting->n - 1]] & 1);
    }
    for (uint32_t k = 0; k < b->n_threads; k++) {
        struct thread *t = &b->threads[k];
        if (t->state != AT_BARRIER || t->barrier != id)
            continue;
        int sub = t->waiting->sub;
        if (sub == B_POPC || sub == B_AND || sub == B_OR)
            t->r[t->waiting->o[0]] = sub == B_POPC ? are : sub == B_AND ? are == n : are > 0;
        t->state = READY;
    }
    b->arrived[id] = 0;
}

bool barriers_step(struct block *b)
{
    uint32_t waiting[N_BARRIERS] = { 0 }, wanted[N_BARRIERS] = { 0 };
    bool any = false;
    for (uint32_t k = 0; k < b->n_threads; k++) {
        const struct thread *t = &b->threads[k];
        if (t->state != AT_BARRIER)
            continue;
        waiting[t->barrier]++;
        wanted[t->barrier] = t->barrier_count ? t->barrier_count : b->n_live;
    }
    for (int id = 0; id < N_BARRIERS; id++)
        if (waiting[id] && waiting[id] + b->arrived[id] >= wanted[id]) {
            release(b, id);
            any = true;
        }
    return any;
}

// --- a warp's lanes

void run_gather(struct thread *t, const struct ins *i)
{
    t->waiting = i;
    t->state = AT_WARP;
}

struct lanes {
    struct thread *warp;
    uint32_t n, mask; // that are at the instruction
    const struct ins *i;
};

static bool is_in(const struct lanes *l, uint32_t lane)
{
    return l->mask >> lane & 1;
}

// Whom a lane waits for: the operand that has the mask, by instruction; 0: whoever is there.
static uint32_t wanted_by(const struct thread *t, const struct ins *i)
{
    switch (i->op) {
    case OP_bar: return (uint32_t)t->r[i->o[0]];
    case OP_barrier: return (uint32_t)t->r[i->o[0]];
    case OP_activemask: return 0;
    case OP_mma:
    case OP_ldmatrix: return ~0u;
    default: return (uint32_t)t->r[i->o[i->n - 1]];
    }
}

// shfl.sync d|p, a, b, c, mask: c has the width and what bounds the lanes.
static void shuffle(const struct lanes *l, uint32_t values[WARP], uint32_t inside[WARP])
{
    for (uint32_t k = 0; k < l->n; k++) {
        if (!is_in(l, k))
            continue;
        const struct thread *t = &l->warp[k];
        uint32_t b = (uint32_t)t->r[l->i->o[3]] & 31, c = (uint32_t)t->r[l->i->o[4]];
        uint32_t segment = c >> 8 & 31, bound = c & 31;
        uint32_t most = (k & segment) | (bound & ~segment), least = k & segment;
        uint32_t from = k;
        bool in = true;
        switch (l->i->sub) {
        case B_UP: in = (int)k - (int)b >= (int)most; from = k - b; break;
        case B_DOWN: in = k + b <= most; from = k + b; break;
        case B_BFLY: in = (k ^ b) <= most; from = k ^ b; break;
        default: from = least | (b & ~segment); in = from <= most; break;
        }
        from = in && from < l->n ? from : k;
        values[k] = (uint32_t)l->warp[from].r[l->i->o[2]];
        inside[k] = in;
    }
}

static uint32_t reduce(const struct lanes *l, uint32_t members)
{
    const struct ins *i = l->i;
    uint32_t out = 0;
    bool any = false;
    for (uint32_t k = 0; k < l->n; k++) {
        if (!(members & l->mask & 1u << k))
            continue;
        uint32_t v = (uint32_t)l->warp[k].r[i->o[1]];
        bool less = i->type.kind == K_SIGNED ? (int32_t)v < (int32_t)out : v < out;
        switch (i->sub) {
        case B_ADD: out += v; break;
        case B_AND: out = any ? out & v : v; break;
        case B_OR: out |= v; break;
        case B_XOR: out ^= v; break;
        case B_MIN: out = any && !less ? out : v; break;
        default: out = any && less ? out : v;
        }
        any = true;
    }
    return out;
}

// vote d, p, mask
static uint32_t vote(const struct lanes *l, uint32_t members)
{
    uint32_t is = 0, all = members & l->mask;
    for (uint32_t k = 0; k < l->n; k++)
        if (all >> k & 1 && l->warp[k].r[l->i->o[1]] & 1)
            is |= 1u << k;
    switch (l->i->sub) {
    case B_ALL: return is == all;
    case B_ANY: return is != 0;
    case B_UNI: return is == 0 || is == all;
    default: return is;
    }
}

// match d|p, a, mask
static uint32_t match(const struct lanes *l, uint32_t lane, uint32_t members, uint32_t *same)
{
    uint64_t own = get_bits(&l->warp[lane], l->i->o[2], l->i->type);
    uint32_t equal = 0;
    for (uint32_t k = 0; k < l->n; k++)
        if (members & l->mask & 1u << k && get_bits(&l->warp[k], l->i->o[2], l->i->type) == own)
            equal |= 1u << k;
    *same = equal == (members & l->mask);
    return l->i->sub == B_ALL && !*same ? 0 : equal;
}

// ldmatrix: lane 8m + r has the address of row r of matrix m, and gets of each its pair.
static void load_matrices(const struct lanes *l)
{
    const struct ins *i = l->i;
    const uint16_t *rows[WARP] = { NULL };
    for (uint32_t k = 0; k < 8u * i->n && k < l->n; k++) {
        rows[k] = access_at(&l->warp[k], S_SHARED, address_of(&l->warp[k], i, i->o[i->n]), 16);
        if (!rows[k])
            return;
    }
    for (uint32_t k = 0; k < l->n; k++)
        for (uint32_t m = 0; m < i->n; m++) {
            uint32_t row = 8 * m + k / 4, column = k % 4 * 2, swapped = 8 * m + column;
            uint32_t low = i->sub == B_TRANS ? rows[swapped][k / 4] : rows[row][column];
            uint32_t high = i->sub == B_TRANS ? rows[swapped + 1][k / 4] : rows[row][column + 1];
            l->warp[k].r[i->o[m]] = low | high << 16;
        }
}

static double half_at(const struct thread *t, uint32_t slot, int half, struct ptx_type type)
{
    return get_float(t->r[slot] >> 16 * half, type);
}

// mma.m16n8k16 and .m16n8k8, row by column: d[4], a[4 or 2], b[2 or 1], c[4] of each lane. Lane k
// has rows k/4 and k/4+8, columns k%4*2 and the next; the sums are in a double, then a float.
static void multiply_matrices(const struct lanes *l)
{
    const struct ins *i = l->i;
    const uint32_t n_a = (i->n - 8u) * 2 / 3, n_b = n_a / 2, depth = 4 * n_a;
    double a[16][16], b[16][8];
    float out[WARP][4];
    for (uint32_t k = 0; k < WARP; k++) {
        const struct thread *t = &l->warp[k];
        for (uint32_t r = 0; r < n_a; r++)
            for (uint32_t h = 0; h < 2; h++)
                a[k / 4 + r % 2 * 8][k % 4 * 2 + h + r / 2 * 8] =
                    half_at(t, i->o[4 + r], (int)h, i->from);
        for (uint32_t r = 0; r < n_b; r++)
            for (uint32_t h = 0; h < 2; h++)
                b[k % 4 * 2 + h + r * 8][k / 4] = half_at(t, i->o[4 + n_a + r], (int)h, i->from);
    }
    for (uint32_t k = 0; k < WARP; k++)
        for (uint32_t r = 0; r < 4; r++) {
            double sum = get_float(l->warp[k].r[i->o[4 + n_a + n_b + r]], i->type);
            for (uint32_t d = 0; d < depth; d++)
                sum += a[k / 4 + r / 2 * 8][d] * b[d][k % 4 * 2 + r % 2];
            out[k][r] = (float)sum;
        }
    for (uint32_t k = 0; k < WARP; k++)
        for (uint32_t r = 0; r < 4; r++)
            l->warp[k].r[i->o[r]] = put_float((double)out[k][r], i->type);
}

static void exchange(const struct lanes *l)
{
    const struct ins *i = l->i;
    uint32_t values[WARP] = { 0 }, more[WARP] = { 0 };
    bool pair = i->op == OP_shfl || i->op == OP_match || i->op == OP_elect;
    if (i->op == OP_shfl)
        shuffle(l, values, more);
    for (uint32_t k = 0; k < l->n; k++) {
        uint32_t members = wanted_by(&l->warp[k], i);
        if (!is_in(l, k))
            continue;
        switch (i->op) {
        case OP_vote: values[k] = vote(l, members); break;
        case OP_redux: values[k] = reduce(l, members); break;
        case OP_match: values[k] = match(l, k, members, &more[k]); break;
        case OP_activemask: values[k] = l->mask; break;
        case OP_elect:
            values[k] = (uint32_t)__builtin_ctz(l->mask);
            more[k] = values[k] == k;
            break;
        default: break;
        }
    }
    for (uint32_t k = 0; k < l->n; k++)
        if (is_in(l, k)) {
            l->warp[k].r[i->o[0]] = truncate_bits(values[k], word.size);
            if (pair)
                l->warp[k].r[i->o[1]] = more[k];
        }
}

static void run_together(const struct lanes *l)
{
    if (l->i->op == OP_ldmatrix)
        load_matrices(l);
    else if (l->i->op == OP_mma && l->n == WARP)
        multiply_matrices(l);
    else if (l->i->op != OP_bar && l->i->op != OP_barrier)
        exchange(l);
    for (uint32_t k = 0; k < l->n; k++)
        if (is_in(l, k) && l->warp[k].state == AT_WARP)
            l->warp[k].state = READY;
}

// Those at the same instruction as lane `k`, and whether all are there whom they name.
static bool collect(struct thread *warp, uint32_t n, uint32_t k, struct lanes *out)
{
    uint32_t live = 0;
    *out = (struct lanes){ warp, n, 0, warp[k].waiting };
    for (uint32_t j = 0; j < n; j++) {
        live |= warp[j].state != ENDED ? 1u << j : 0;
        out->mask |= warp[j].state == AT_WARP && warp[j].waiting == out->i ? 1u << j : 0;
    }
    return (wanted_by(&warp[k], out->i) & live & ~out->mask) == 0;
}

// Of several instructions the first in the text goes on, so that the others' lanes may catch up.
bool warp_step(struct block *b, struct thread *warp, uint32_t n, bool force)
{
    struct lanes best = { 0 }, lanes;
    (void)b;
    for (uint32_t k = 0; k < n; k++)
        if (warp[k].state == AT_WARP && (!best.i || warp[k].waiting < best.i) &&
            (collect(warp, n, k, &lanes) || force))
            best = lanes;
    if (best.i)
        run_together(&best);
    return best.i != NULL;
}
