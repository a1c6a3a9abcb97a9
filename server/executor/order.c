#include "executor/order.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { MOST_PIECES = 4096 };

// Steps are numbers in their section, from 1; 0: none.
struct order_piece {
    uint64_t begin, end;
    uint32_t writer;
    uint32_t readers; // since: a list, whose rest pieces that were one may share
};

struct order_reader {
    uint32_t step, next;
};

static void include(struct order_set *set, uint32_t i)
{
    set->words[i / 64] |= UINT64_C(1) << i % 64;
}

static bool includes(const struct order_set *set, uint32_t i)
{
    return set->words[i / 64] >> i % 64 & 1;
}

static void unite(struct order_set *set, const struct order_set *other)
{
    for (int i = 0; i < ORDER_WORDS; i++)
        set->words[i] |= other->words[i];
}

// --- pieces

// The first that ends behind an address.
static size_t find_piece(const struct order *o, uint64_t at)
{
    size_t low = 0, high = o->n_pieces;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (o->pieces[middle].end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void insert_piece(struct order *o, size_t i, struct order_piece piece)
{
    if (o->n_pieces == o->pieces_room) {
        o->pieces_room = o->pieces_room ? 2 * o->pieces_room : 64;
        o->pieces = mem_realloc(o->pieces, o->pieces_room, sizeof *o->pieces);
    }
    memmove(o->pieces + i + 1, o->pieces + i, (o->n_pieces - i) * sizeof *o->pieces);
    o->pieces[i] = piece;
    o->n_pieces++;
}

static void split_piece(struct order *o, size_t i, uint64_t at)
{
    struct order_piece left = o->pieces[i];
    left.end = o->pieces[i].begin = at;
    insert_piece(o, i, left);
}

static uint32_t add_reader(struct order *o, uint32_t step, uint32_t next)
{
    if (o->n_readers == o->readers_room) {
        o->readers_room = o->readers_room ? 2 * o->readers_room : 64;
        o->readers = mem_realloc(o->readers, o->readers_room, sizeof *o->readers);
    }
    o->readers[o->n_readers++] = (struct order_reader){ step, next };
    return (uint32_t)o->n_readers;
}

// --- a step

static void want(struct order_set *wanted, uint32_t step, uint32_t own)
{
    if (step > 0 && step != own)
        include(wanted, step - 1);
}

// Notes that a step touches a piece, and whom it waits for.
static void touch(struct order *o, size_t i, bool written, struct order_set *wanted)
{
    const uint32_t own = o->n + 1;
    struct order_piece *piece = &o->pieces[i];
    uint32_t *readers = &piece->readers;
    want(wanted, piece->writer, own);
    if (!written) {
        if (*readers == 0 || o->readers[*readers - 1].step != own)
            *readers = add_reader(o, own, *readers);
        return;
    }
    for (uint32_t r = *readers; r > 0; r = o->readers[r - 1].next)
        want(wanted, o->readers[r - 1].step, own);
    piece->writer = own;
    piece->readers = 0;
}

static void touch_range(struct order *o, const struct order_range *r, struct order_set *wanted)
{
    size_t i = find_piece(o, r->begin);
    if (i < o->n_pieces && o->pieces[i].begin < r->begin)
        split_piece(o, i++, r->begin);
    for (uint64_t at = r->begin; at < r->end; at = o->pieces[i++].end) {
        uint64_t next = i < o->n_pieces ? o->pieces[i].begin : UINT64_MAX;
        if (next > at) // nobody has touched what is here
            insert_piece(o, i,
                         (struct order_piece){ .begin = at, .end = next < r->end ? next : r->end });
        else if (o->pieces[i].end > r->end)
            split_piece(o, i, r->end);
        touch(o, i, r->written, wanted);
    }
}

// From the latest back: who comes before one that is waited for need not be.
static void choose(struct order *o, const struct order_set *wanted)
{
    struct order_set *before = &o->before[o->n];
    *before = (struct order_set){ 0 };
    o->n_after = 0;
    for (uint32_t i = o->n; i-- > 0;)
        if (includes(wanted, i) && !includes(before, i)) {
            o->after[o->n_after++] = o->first + i;
            include(&o->followed, i);
            unite(before, &o->before[i]);
            include(before, i);
        }
}

// The step that waits for all of the section before.
static void begin_section(struct order *o)
{
    o->n_after = 0;
    for (uint32_t i = o->n; i-- > 0;)
        if (!includes(&o->followed, i))
            o->after[o->n_after++] = o->first + i;
    o->first += o->n;
    o->n = 1;
    o->before[0] = o->followed = (struct order_set){ 0 };
    o->n_pieces = o->n_readers = 0;
}

void order_step(struct order *o, const struct order_range *ranges, size_t n)
{
    struct order_set wanted = { 0 };
    if (!o->before)
        o->before = mem_alloc(ORDER_SECTION * sizeof *o->before);
    if (o->n == ORDER_SECTION || o->n_pieces > MOST_PIECES) {
        begin_section(o);
        return;
    }
    if (o->first > 0)
        include(&wanted, 0);
    for (int written = 0; written < 2; written++) // who writes what it reads is its own reader
        for (size_t i = 0; i < n; i++)
            if (ranges[i].written == written && ranges[i].begin < ranges[i].end)
                touch_range(o, &ranges[i], &wanted);
    choose(o, &wanted);
    o->n++;
}

void order_finish(struct order *o)
{
    free(o->before);
    free(o->pieces);
    free(o->readers);
    *o = (struct order){ 0 };
}
