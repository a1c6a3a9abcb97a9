#include "run.h"

#include <string.h>

// Bits, fields of them, and bytes.

void run_bits(struct thread *t, const struct ins *i)
{
    unsigned bits = 8 * i->type.size;
    uint64_t a = get_bits(t, i->o[1], i->type), b = i->n > 2 ? get_bits(t, i->o[2], i->type) : 0;
    unsigned count = i->n > 2 ? (unsigned)t->r[i->o[2]] : 0, most = count < bits ? count : bits;
    uint64_t v = 0;
    switch (i->op) {
    case OP_and: v = a & b; break;
    case OP_or: v = a | b; break;
    case OP_xor: v = a ^ b; break;
    case OP_not: v = i->type.kind == K_PRED ? !a : ~a; break;
    case OP_cnot: v = a == 0; break;
    case OP_shl: v = most == 64 ? 0 : a << most; break;
    case OP_shr:
        if (i->type.kind == K_SIGNED)
            v = (uint64_t)(get_signed(t, i->o[1], i->type) >> (most < 64 ? most : 63));
        else
            v = most == 64 ? 0 : a >> most;
        break;
    case OP_popc: v = (uint64_t)__builtin_popcountll(a); break;
    case OP_clz: v = a ? (uint64_t)__builtin_clzll(a) - (64 - bits) : bits; break;
    default: // brev
        for (unsigned k = 0; k < bits; k++)
            v |= (a >> k & 1) << (bits - 1 - k);
    }
    put(t, i, v);
}

static uint64_t extract(const struct thread *t, const struct ins *i)
{
    unsigned bits = 8 * i->type.size;
    unsigned at = t->r[i->o[2]] & 0xff, n = t->r[i->o[3]] & 0xff;
    uint64_t a = get_bits(t, i->o[1], i->type);
    uint64_t v = at < bits ? a >> at : 0;
    bool is_signed = i->type.kind == K_SIGNED;
    if (n < bits)
        v &= (1ull << n) - 1;
    unsigned top = at + n - 1 < bits - 1 ? at + n - 1 : bits - 1;
    if (is_signed && n > 0 && a >> top & 1 && n < bits)
        v |= top >= at ? ~0ull << (top - at + 1 < 64 ? top - at + 1 : 63) : ~0ull;
    return v;
}

static uint64_t insert(const struct thread *t, const struct ins *i)
{
    unsigned bits = 8 * i->type.size;
    unsigned at = t->r[i->o[3]] & 0xff, n = t->r[i->o[4]] & 0xff;
    uint64_t a = t->r[i->o[1]], b = t->r[i->o[2]];
    if (at >= bits || n == 0)
        return b;
    uint64_t mask = (n < 64 ? (1ull << n) - 1 : ~0ull) << at;
    return (b & ~mask) | (a << at & mask);
}

static uint64_t permute(const struct thread *t, const struct ins *i)
{
    uint64_t from = (t->r[i->o[1]] & 0xffffffff) | t->r[i->o[2]] << 32, v = 0;
    for (int k = 0; k < 4; k++) {
        unsigned choice = t->r[i->o[3]] >> 4 * k & 15;
        uint64_t byte = from >> 8 * (choice & 7) & 0xff;
        v |= (choice & 8 ? (byte & 0x80 ? 0xffu : 0) : byte) << 8 * k;
    }
    return v;
}

static uint64_t look_up(const struct thread *t, const struct ins *i)
{
    uint32_t v = 0, a = (uint32_t)t->r[i->o[1]], b = (uint32_t)t->r[i->o[2]];
    uint32_t c = (uint32_t)t->r[i->o[3]];
    for (unsigned k = 0; k < 8; k++)
        if (t->r[i->o[4]] >> k & 1)
            v |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
    return v;
}

static uint64_t funnel(const struct thread *t, const struct ins *i)
{
    uint64_t both = (t->r[i->o[1]] & 0xffffffff) | t->r[i->o[2]] << 32;
    uint32_t n = (uint32_t)t->r[i->o[3]];
    n = i->shift == B_WRAP ? n & 31 : n < 32 ? n : 32;
    return i->sub == B_L ? both << n >> 32 : both >> n;
}

// The place of the highest bit that is no copy of the sign.
static uint64_t find_bit(const struct thread *t, const struct ins *i)
{
    int64_t a = get_signed(t, i->o[1], i->type);
    uint64_t v = (uint64_t)(i->type.kind == K_SIGNED && a < 0 ? ~a : a);
    int place = v ? 63 - __builtin_clzll(v) : -1;
    return place >= 0 && i->shift == B_CLAMP ? (uint64_t)(8 * i->type.size - 1 - place)
                                             : (uint32_t)place;
}

void run_field(struct thread *t, const struct ins *i)
{
    switch (i->op) {
    case OP_bfe: put(t, i, extract(t, i)); break;
    case OP_bfi: put(t, i, insert(t, i)); break;
    case OP_prmt: put(t, i, permute(t, i)); break;
    case OP_lop3: put(t, i, look_up(t, i)); break;
    case OP_shf: put(t, i, funnel(t, i)); break;
    default: t->r[i->o[0]] = find_bit(t, i);
    }
}

void run_dot(struct thread *t, const struct ins *i)
{
    uint32_t a = (uint32_t)t->r[i->o[1]], b = (uint32_t)t->r[i->o[2]];
    uint32_t sum = (uint32_t)t->r[i->o[3]];
    bool four = i->op == OP_dp4a;
    for (int k = 0; k < (four ? 4 : 2); k++) {
        uint32_t x = four ? a >> 8 * k & 0xff : a >> 16 * k & 0xffff;
        uint32_t y = b >> 8 * (k + (!four && i->part == P_HI ? 2 : 0)) & 0xff;
        if (i->type.kind == K_SIGNED)
            x = four ? (uint32_t)(int8_t)x : (uint32_t)(int16_t)x;
        if (i->from.kind == K_SIGNED)
            y = (uint32_t)(int8_t)y;
        sum += x * y;
    }
    t->r[i->o[0]] = sum;
}
