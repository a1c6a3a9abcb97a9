#include "memory/writes.h"

#include <stdlib.h>

#include "base/mem.h"
#include "memory/kept.h"
#include "memory/tensor.h"

// A storage that is suspect in more pieces than that is so as a whole.
enum { MAX_PIECES = 1024 };

static struct mem_pool fates;

struct fate *fate_new(void)
{
    struct fate *f = mem_pool_take(&fates, sizeof *f);
    *f = (struct fate){ .refs = 1 };
    return f;
}

struct fate *fate_ref(struct fate *f)
{
    f->refs++;
    return f;
}

void fate_unref(struct fate *f)
{
    if (!f || --f->refs > 0)
        return;
    free(f->why);
    mem_pool_give(&fates, f);
}

// Most storages have one at a time.
static struct write *new_write(struct storage *s, uint64_t begin, uint64_t end, struct fate *fate,
                               struct write *next)
{
    struct write *w = s->own.fate ? mem_alloc(sizeof *w) : &s->own;
    *w = (struct write){ .next = next, .begin = begin, .end = end, .fate = fate_ref(fate) };
    return w;
}

static void remove_write(struct storage *s, struct write **at)
{
    struct write *w = *at;
    *at = w->next;
    fate_unref(w->fate);
    if (w == &s->own)
        w->fate = NULL;
    else
        free(w);
}

// No bytes touch nothing, wherever they are.
static bool touches(const struct write *w, uint64_t begin, uint64_t end)
{
    return begin < end && begin < w->end && w->begin < end;
}

// Takes the bytes out of one write. True: nothing of it is left.
static bool cut(struct storage *s, struct write *w, uint64_t begin, uint64_t end, bool may_split)
{
    if (begin <= w->begin && end >= w->end)
        return true;
    if (begin <= w->begin) {
        w->begin = end;
    } else if (end >= w->end) {
        w->end = begin;
    } else if (may_split) {
        w->next = new_write(s, end, w->end, w->fate, w->next);
        w->end = begin;
    }
    return false;
}

// Takes the bytes out of all writes that have failed, and with `open` of the others.
static void cut_all(struct storage *s, uint64_t begin, uint64_t end, bool open)
{
    int n = 0;
    for (struct write **at = &s->writes; *at; n++) {
        struct write *w = *at;
        bool meant = touches(w, begin, end) && (open || w->fate->state == FATE_FAILED);
        if (meant && cut(s, w, begin, end, n < MAX_PIECES))
            remove_write(s, at);
        else
            at = &w->next;
    }
}

void writes_add(struct storage *s, uint64_t begin, uint64_t end, struct fate *fate)
{
    writes_settle(s);
    cut_all(s, begin, end, true);
    s->writes = new_write(s, begin, end, fate, s->writes);
    kept_settle(s);
}

void writes_settle(struct storage *s)
{
    for (struct write **at = &s->writes; *at;) {
        if ((*at)->fate->state == FATE_DONE)
            remove_write(s, at);
        else
            at = &(*at)->next;
    }
    kept_settle(s);
}

struct fate *writes_next(const struct storage *s, uint64_t begin, uint64_t end,
                         const struct write **cursor)
{
    const struct write *w = *cursor ? (*cursor)->next : s->writes;
    while (w && (w->fate->state == FATE_DONE || !touches(w, begin, end)))
        w = w->next;
    *cursor = w;
    return w ? w->fate : NULL;
}

const char *writes_suspect(const struct storage *s, uint64_t begin, uint64_t end)
{
    const struct write *cursor = NULL;
    for (struct fate *f; (f = writes_next(s, begin, end, &cursor)) != NULL;)
        if (f->state == FATE_FAILED)
            return f->why ? f->why : "";
    return NULL;
}

void writes_accept(struct storage *s, uint64_t begin, uint64_t end)
{
    cut_all(s, begin, end, false);
    kept_settle(s);
}

void writes_free(struct storage *s)
{
    while (s->writes)
        remove_write(s, &s->writes);
}

bool writes_refuse(const char *what, const char *why, struct opd_err *err)
{
    return opd_err_set(err, OPD_E_invalid_argument,
                       "%s is suspect: a request that was writing it failed (%.600s); write all of "
                       "it again, or accept what it holds with tensor_accept",
                       what, why);
}
