#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Loads, stores, atomics. What is mapped may be touched, whatever it is; else it is a fault.

enum { MOST_LOCAL = 512 << 10 };

static bool is_known(struct block *b, uint64_t addr, size_t size)
{
    unsigned generation = memory_generation();
    if (b->generation != generation) {
        memset(b->known, 0, sizeof b->known);
        b->generation = generation;
    }
    for (int k = 0; k < 2; k++)
        if (addr >= b->known[k].start && addr < b->known[k].end)
            return size <= b->known[k].end - addr;
    b->known[1] = b->known[0];
    if (!memory_find(addr, &b->known[0]))
        b->known[0] = (struct range){ 0 };
    return addr >= b->known[0].start && addr < b->known[0].end && size <= b->known[0].end - addr;
}

static uint8_t *local_at(struct thread *t, uint64_t addr, size_t size)
{
    if (addr > MOST_LOCAL || size > MOST_LOCAL - addr)
        return NULL;
    if (addr + size > t->local_size) {
        size_t want = t->local_size ? 2 * t->local_size : 256;
        while (want < addr + size)
            want *= 2;
        t->local = realloc(t->local, want);
        if (!t->local)
            abort();
        memset(t->local + t->local_size, 0, want - t->local_size);
        t->local_size = want;
    }
    return t->local + addr;
}

static uint8_t *find(struct thread *t, enum ptx_space space, uint64_t addr, size_t size)
{
    struct block *b = t->block;
    const struct launch *l = b->launch;
    switch (space) {
    case S_SHARED:
        return addr < b->shared_size && size <= b->shared_size - addr ? b->shared + addr : NULL;
    case S_LOCAL: return local_at(t, addr, size);
    case S_PARAM:
        return addr < l->args_size && size <= l->args_size - addr ? l->args + addr : NULL;
    case S_GENERIC:
        if (addr - windows.shared < WINDOW_SIZE)
            return find(t, S_SHARED, addr - windows.shared, size);
        if (addr - windows.local < WINDOW_SIZE)
            return find(t, S_LOCAL, addr - windows.local, size);
        if (addr - windows.param < WINDOW_SIZE)
            return find(t, S_PARAM, addr - windows.param, size);
        break;
    default: break;
    }
    return is_known(b, addr, size) ? (uint8_t *)(uintptr_t)addr : NULL;
}

void *access_at(struct thread *t, enum ptx_space space, uint64_t addr, size_t size)
{
    if (addr & (size - 1)) {
        fault(t, CUDA_ERROR_MISALIGNED_ADDRESS);
        return NULL;
    }
    uint8_t *at = find(t, space, addr, size);
    if (!at)
        fault(t, DRV_ERROR_ILLEGAL_ADDRESS);
    return at;
}

// Sizes of powers of two, as one access each.
static uint64_t load(const uint8_t *at, unsigned size)
{
    switch (size) {
    case 1: return *at;
    case 2: return __atomic_load_n((const uint16_t *)(const void *)at, __ATOMIC_RELAXED);
    case 4: return __atomic_load_n((const uint32_t *)(const void *)at, __ATOMIC_RELAXED);
    default: return __atomic_load_n((const uint64_t *)(const void *)at, __ATOMIC_RELAXED);
    }
}

static void store(uint8_t *at, unsigned size, uint64_t value)
{
    switch (size) {
    case 1: *at = (uint8_t)value; break;
    case 2: __atomic_store_n((uint16_t *)(void *)at, (uint16_t)value, __ATOMIC_RELAXED); break;
    case 4: __atomic_store_n((uint32_t *)(void *)at, (uint32_t)value, __ATOMIC_RELAXED); break;
    default: __atomic_store_n((uint64_t *)(void *)at, value, __ATOMIC_RELAXED);
    }
}

static unsigned size_of(struct ptx_type type)
{
    return type.two ? 4 : type.size;
}

void run_ld(struct thread *t, const struct ins *i)
{
    unsigned size = size_of(i->type);
    const uint8_t *at = access_at(t, i->space, address_of(t, i, i->o[i->n]), (size_t)size * i->n);
    if (!at)
        return;
    for (unsigned k = 0; k < i->n; k++) {
        uint64_t v = load(at + size * k, size);
        if (i->type.kind == K_SIGNED) // as wide as the register may be
            v = (uint64_t)((int64_t)(v << (64 - 8 * size)) >> (64 - 8 * size));
        t->r[i->o[k]] = v;
    }
}

void run_st(struct thread *t, const struct ins *i)
{
    unsigned size = size_of(i->type);
    uint8_t *at = access_at(t, i->space, address_of(t, i, i->o[0]), (size_t)size * i->n);
    for (unsigned k = 0; at && k < i->n; k++)
        store(at + size * k, size, t->r[i->o[1 + k]]);
}

static uint64_t combine_floats(const struct ins *i, uint64_t a, uint64_t b)
{
    struct ptx_type type = { i->type.kind, i->type.size, false };
    uint64_t out = 0;
    for (int k = 0; k < (i->type.two ? 2 : 1); k++) {
        double x = get_float(a >> 16 * k, type), y = get_float(b >> 16 * k, type);
        double v = i->sub == B_MIN ? fmin(x, y) : i->sub == B_MAX ? fmax(x, y) : x + y;
        out |= put_float(v, type) << 16 * k;
    }
    return out;
}

static uint64_t combine(const struct ins *i, uint64_t old, uint64_t b, uint64_t c)
{
    unsigned unused = 64 - 8 * size_of(i->type);
    bool less = i->type.kind == K_SIGNED
                    ? (int64_t)(old << unused) < (int64_t)(b << unused)
                    : old < b;
    if (i->type.kind >= K_FLOAT && i->sub != B_EXCH && i->sub != B_CAS)
        return combine_floats(i, old, b);
    switch (i->sub) {
    case B_ADD: return old + b;
    case B_MIN: return less ? old : b;
    case B_MAX: return less ? b : old;
    case B_AND: return old & b;
    case B_OR: return old | b;
    case B_XOR: return old ^ b;
    case B_INC: return old >= b ? 0 : old + 1;
    case B_DEC: return old == 0 || old > b ? b : old - 1;
    case B_CAS: return old == b ? c : old;
    default: return b; // exch
    }
}

static bool exchange(uint8_t *at, unsigned size, uint64_t *old, uint64_t to)
{
    uint16_t w16 = (uint16_t)*old;
    uint32_t w32 = (uint32_t)*old;
    bool done;
    switch (size) {
    case 2:
        done = __atomic_compare_exchange_n((uint16_t *)(void *)at, &w16, (uint16_t)to, false,
                                           __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        *old = w16;
        return done;
    case 4:
        done = __atomic_compare_exchange_n((uint32_t *)(void *)at, &w32, (uint32_t)to, false,
                                           __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
        *old = w32;
        return done;
    default:
        return __atomic_compare_exchange_n((uint64_t *)(void *)at, old, to, false,
                                           __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
}

// Of red there is no destination.
void run_atom(struct thread *t, const struct ins *i)
{
    unsigned size = size_of(i->type), first = i->op == OP_atom;
    uint8_t *at = access_at(t, i->space, address_of(t, i, i->o[first]), size);
    if (!at)
        return;
    uint64_t b = truncate_bits(t->r[i->o[first + 1]], size), old = load(at, size);
    uint64_t c = i->sub == B_CAS ? t->r[i->o[first + 2]] : 0;
    while (!exchange(at, size, &old, truncate_bits(combine(i, old, b, c), size)))
        continue;
    if (first)
        t->r[i->o[0]] = old;
}

// cp.async is done at once; what waits for it has nothing to do. Bytes that are not to be read are
// zeros.
void run_cp(struct thread *t, const struct ins *i)
{
    if (i->n < 3)
        return;
    size_t size = t->r[i->o[2]], read = i->n > 3 ? (uint32_t)t->r[i->o[3]] : size;
    uint8_t *to = access_at(t, S_SHARED, t->r[i->o[0]] + (uint64_t)i->offset, size);
    uint64_t source = t->r[i->o[1]] + (uint64_t)i->source_offset;
    const uint8_t *from = to && read ? access_at(t, S_GENERIC, source, size) : NULL;
    if (!to || (read && !from))
        return;
    memset(to, 0, size);
    if (from)
        memcpy(to, from, read < size ? read : size);
}
