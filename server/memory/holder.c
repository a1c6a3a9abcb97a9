#include "memory/holder.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "memory/tensor.h"

enum { SHOWN = 5 }; // clients in a report; the others are one number

struct holder *holder_new(int pid)
{
    struct holder *h = mem_zalloc(1, sizeof *h);
    h->refs = 1;
    h->pid = pid;
    return h;
}

struct holder *holder_ref(struct holder *h)
{
    h->refs++;
    return h;
}

void holder_enter(struct holder *h, struct holders *list, uint64_t id)
{
    h->id = id;
    h->list = list;
    h->next = list->first;
    if (h->next)
        h->next->prev = h;
    list->first = h;
}

void holder_leave(struct holder *h)
{
    if (!h->list)
        return;
    if (h->prev)
        h->prev->next = h->next;
    else
        h->list->first = h->next;
    if (h->next)
        h->next->prev = h->prev;
    h->prev = h->next = NULL;
    h->list = NULL;
}

void holder_unref(struct holder *h)
{
    if (!h || --h->refs > 0)
        return;
    holder_leave(h);
    free(h);
}

const char *holder_size(uint64_t bytes, char *buf)
{
    static const char *const units[] = { "bytes", "KiB", "MiB", "GiB", "TiB" };
    double n = (double)bytes;
    int unit = 0;
    while (n >= 1024 && unit < 4) {
        n /= 1024;
        unit++;
    }
    snprintf(buf, 32, n < 100 && n != (double)(int)n ? "%.1f %s" : "%.0f %s", n, units[unit]);
    return buf;
}

const char *holder_name(const struct holder *h, char *out, size_t size)
{
    int n = snprintf(out, size, "%.48s", h && h->client[0] ? h->client : "a client");
    if (h && h->pid && n > 0 && (size_t)n < size)
        snprintf(out + n, size - (size_t)n, " (pid %d)", h->pid);
    return out;
}

// Counts the memory of a storage among others, or no more.
static void count(uint64_t *bytes, const struct storage *s, int sign)
{
    uint64_t size = s->block ? s->block->size : 0;
    *bytes += sign > 0 ? size : -size;
}

bool holder_allows(const struct holder *h, const struct space *space, uint64_t size,
                   struct opd_err *err)
{
    uint64_t limit = space->client_limit, held = h->bytes[space->index];
    if (!limit || (held < limit && suballoc_round(size) <= limit - held))
        return true;
    char asked[32], has[32], may[32];
    return opd_err_set(err, OPD_E_out_of_memory,
                       "%s asked for on %s: this client holds %s there, and may hold %s "
                       "(--client-memory); free tensors and contexts, or raise the limit",
                       holder_size(size, asked), space->name, holder_size(held, has),
                       holder_size(limit, may));
}

void holder_count(const struct storage *s, int sign)
{
    if (s->holder)
        count(&s->holder->bytes[s->space->index], s, sign);
}

void holder_count_name(struct storage *s, int sign)
{
    int before = s->n_names;
    s->n_names += sign;
    if ((before > 0) == (s->n_names > 0))
        return;
    count(&s->space->named_bytes, s, sign);
    if (s->holder)
        count(&s->holder->named[s->space->index], s, sign);
}

static uint64_t unnamed(const struct holder *h, const struct space *space)
{
    return h->bytes[space->index] - h->named[space->index];
}

// The holder that has the most after `than`, in an order without ties.
static const struct holder *next_largest(const struct space *space, const struct holder *than)
{
    const struct holder *best = NULL;
    for (const struct holder *h = space->holders->first; h; h = h->next) {
        uint64_t n = unnamed(h, space), limit = than ? unnamed(than, space) : UINT64_MAX;
        if (n == 0 || n > limit || (n == limit && than && h->id <= than->id))
            continue;
        uint64_t most = best ? unnamed(best, space) : 0;
        if (!best || n > most || (n == most && h->id < best->id))
            best = h;
    }
    return best;
}

void holder_report(const struct space *space, struct buf *out)
{
    char size[32], name[96];
    uint64_t used = space->map.used, named = space->named_bytes, rest = used - named;
    buf_printf(out, "%s in %d tensors", holder_size(used, size), space->n_tensors);
    const char *between = ": ";
    const struct holder *h = NULL;
    for (int i = 0; i < SHOWN && (h = next_largest(space, h)) != NULL; i++) {
        uint64_t n = unnamed(h, space);
        rest -= n < rest ? n : rest;
        buf_printf(out, "%s%s by %s", between, holder_size(n, size),
                   holder_name(h, name, sizeof name));
        between = ", ";
    }
    if (rest > 0) {
        buf_printf(out, "%s%s by %s", between, holder_size(rest, size),
                   h ? "others" : "clients that have gone");
        between = ", ";
    }
    if (named > 0)
        buf_printf(out, "%s%s in named tensors", between, holder_size(named, size));
}
