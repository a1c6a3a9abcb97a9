// Which places of a run may lie in one memory: a result that is given a tensor lies in nothing
// else's, and what is changed in place is so once. Of lists all are sorted, as there are many.

#include "request/run.h"

#include <stdlib.h>

#include "kernels/version.h"

static bool overlap(const struct place *a, const struct place *b)
{
    return a->storage && b->storage &&
           storage_overlaps(a->storage, a->offset, a->size, b->storage, b->offset, b->size);
}

// Of lists: where a place lies.
struct lying {
    struct dev_ref at;
    const struct place *place;
};

static int compare_lying(const void *a, const void *b)
{
    const struct lying *p = a, *q = b;
    if (p->at.region != q->at.region)
        return p->at.region < q->at.region ? -1 : 1;
    return (p->at.offset > q->at.offset) - (p->at.offset < q->at.offset);
}

// All that have memory, in the order in which they lie, in the request's room; or only those that
// are changed in place.
static struct lying *sort_places(const struct run *run, bool in_place, size_t *out_n)
{
    struct lying *all = arena_alloc(&run->req->room, (size_t)run->n_places + 1, sizeof *all);
    size_t n = 0;
    for (int i = 0; i < run->n_places; i++) {
        const struct place *p = &run->places[i];
        all[n].place = p;
        n += (!in_place || run_is_in_place(run, p)) && p->size > 0 && p->storage &&
             storage_address(p->storage, p->offset, &all[n].at);
    }
    qsort(all, n, sizeof *all, compare_lying);
    *out_n = n;
    return all;
}

// --- changed in place

static bool fail_shared(const struct run *run, const struct place *p, const struct place *q,
                        struct opd_err *err)
{
    char a[RUN_NAME_SIZE], b[RUN_NAME_SIZE];
    return opd_err_set(err, OPD_E_invalid_argument,
                       "%s: %s and %s are changed in place and share memory; expected a tensor "
                       "for each",
                       run->version->op->name, run_place_name(run, q, a),
                       run_place_name(run, p, b));
}

// Neighbours would overlap.
static bool check_lists_in_place(const struct run *run, struct opd_err *err)
{
    size_t n;
    const struct lying *all = sort_places(run, true, &n);
    for (size_t i = 1; i < n; i++) {
        const struct place *p = all[i - 1].place, *q = all[i].place;
        if (overlap(p, q))
            return fail_shared(run, p < q ? q : p, p < q ? p : q, err);
    }
    return true;
}

// Is any memory changed in place twice, perhaps? Storages lie apart, but in a client's own memory.
static bool may_share(const struct run *run)
{
    static uint64_t last;
    uint64_t number = ++last;
    for (const struct place *p = run->places; p < run->places + run->n_places; p++) {
        if (!run_is_in_place(run, p) || p->size == 0)
            continue;
        if (p->storage->import || p->storage->looked_at == number)
            return true;
        p->storage->looked_at = number;
    }
    return false;
}

static bool check_in_place(const struct run *run, struct opd_err *err)
{
    const struct place *end = run->places + run->n_places;
    if (run->lists)
        return !may_share(run) || check_lists_in_place(run, err);
    for (const struct place *p = run->places; p < end; p++)
        for (const struct place *q = run->places; q < p && run_is_in_place(run, p); q++)
            if (run_is_in_place(run, q) && overlap(p, q))
                return fail_shared(run, p, q, err);
    return true;
}

// --- results in tensors that are there

static bool fail_apart(const struct run *run, const struct place *p, const struct place *q,
                       struct opd_err *err)
{
    char a[RUN_NAME_SIZE], b[RUN_NAME_SIZE];
    bool alike = q->how == PLACE_INTO && q->kind == p->kind;
    return opd_err_set(err, OPD_E_invalid_argument,
                       "%s: the tensor for %s lies in the memory of %s%s; expected memory that "
                       "nothing else of this request uses",
                       run->version->op->name, run_place_name(run, p, a),
                       alike ? "another result, " : "", run_place_name(run, q, b));
}

// The place of a result, where nothing else of the run may lie.
static bool check_apart(const struct run *run, const struct place *p, struct opd_err *err)
{
    for (const struct place *q = run->places; q < run->places + run->n_places; q++)
        if (q != p && overlap(p, q) && (q->how != PLACE_INTO || q < p))
            return fail_apart(run, p, q, err);
    return true;
}

static const struct place *farther(const struct place *p, const struct place *q)
{
    struct dev_ref a, b;
    bool both = p && storage_address(p->storage, p->offset, &a) &&
                storage_address(q->storage, q->offset, &b);
    return both && a.region == b.region && a.offset + p->size > b.offset + q->size ? p : q;
}

// The same of all places of results: each against the one before it that reaches farthest.
static bool check_lists_apart(const struct run *run, struct opd_err *err)
{
    size_t n;
    const struct lying *all = sort_places(run, false, &n);
    const struct place *any = NULL, *into = NULL;
    for (size_t i = 0; i < n; i++) {
        const struct place *p = all[i].place, *q = p->how == PLACE_INTO ? any : into;
        if (q && overlap(p, q)) {
            bool first = p->how == PLACE_INTO && (q->how != PLACE_INTO || q < p);
            return fail_apart(run, first ? p : q, first ? q : p, err);
        }
        any = farther(any, p);
        into = p->how == PLACE_INTO ? farther(into, p) : into;
    }
    return true;
}

static bool check_into(struct run *run, struct opd_err *err)
{
    const struct plan *plan = run->bound->plan;
    bool found = false;
    if (!run_has(run, PLACE_INTO))
        return true;
    for (int i = 0; i < plan->n_operands; i++) {
        const struct plan_operand *o = &plan->operands[i];
        const struct place *p = run_place(run, (uint32_t)i);
        if (!p || p->how != PLACE_INTO)
            continue;
        if (o->view_of >= 0)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "%s: %s is a view, which cannot be written into another tensor",
                               run->version->op->name, o->name);
        const char *role = o->kind == PLAN_SAVED ? "the saved tensor" : "the result";
        if (!run_check_desc(run, p, &o->desc, role, err) ||
            (!run->lists && !check_apart(run, p, err)))
            return false;
        found = true;
    }
    return !found || !run->lists || check_lists_apart(run, err);
}

bool run_check_sharing(struct run *run, struct opd_err *err)
{
    return check_in_place(run, err) && check_into(run, err);
}
