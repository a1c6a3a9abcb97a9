#include "kernels/registry.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/suggest.h"

static const uint32_t MARK_LOADED = 1u << 31;

struct opd_operator *operator_new(const char *name, uint64_t scope)
{
    struct opd_operator *o = mem_zalloc(1, sizeof *o);
    strncpy(o->name, name, sizeof o->name - 1);
    o->refs = 1;
    o->scope = scope;
    o->runs = run_stats_new();
    return o;
}

struct opd_operator *operator_ref(struct opd_operator *o)
{
    o->refs++;
    return o;
}

void operator_unref(struct opd_operator *o)
{
    if (!o || --o->refs > 0)
        return;
    run_stats_unref(o->runs);
    free(o->failure_text);
    free(o);
}

// The place of a name and scope among those in order. True: it is there.
static bool find_operator(const struct registry *r, const char *name, uint64_t scope,
                          size_t *out_at)
{
    size_t low = 0, high = r->n_operators;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct opd_operator *o = r->operators[middle];
        int order = strcmp(o->name, name);
        if (order < 0 || (order == 0 && o->scope < scope))
            low = middle + 1;
        else
            high = middle;
    }
    *out_at = low;
    return low < r->n_operators && r->operators[low]->scope == scope &&
           strcmp(r->operators[low]->name, name) == 0;
}

struct opd_operator *registry_operator(const struct registry *r, const char *name, uint64_t scope)
{
    size_t at;
    return find_operator(r, name, scope, &at) ? r->operators[at] : NULL;
}

bool registry_is_first(const struct registry *r, size_t i)
{
    return i == 0 || r->operators[i - 1]->runs != r->operators[i]->runs;
}

// Of that name, in any scope; at: the place of one of them, or of the one behind.
static struct opd_operator *find_namesake(const struct registry *r, const char *name, size_t at)
{
    if (at > 0 && strcmp(r->operators[at - 1]->name, name) == 0)
        return r->operators[at - 1];
    if (at < r->n_operators && strcmp(r->operators[at]->name, name) == 0)
        return r->operators[at];
    return NULL;
}

struct opd_operator *registry_make_operator(struct registry *r, const char *name, uint64_t scope)
{
    size_t at;
    if (find_operator(r, name, scope, &at))
        return r->operators[at];
    struct opd_operator *o = operator_new(name, scope), *namesake = find_namesake(r, o->name, at);
    if (namesake) {
        run_stats_unref(o->runs);
        o->runs = run_stats_ref(namesake->runs);
    }
    if (r->n_operators % 64 == 0)
        r->operators = mem_realloc(r->operators, r->n_operators + 64,
                                   sizeof(struct opd_operator *));
    memmove(&r->operators[at + 1], &r->operators[at],
            (r->n_operators++ - at) * sizeof(struct opd_operator *));
    r->n_loaded += scope != SCOPE_FILES;
    return r->operators[at] = o;
}

struct opd_operator *registry_see(const struct registry *r, const char *name, uint64_t conn)
{
    const uint64_t scopes[] = { conn, SCOPE_SHARED, SCOPE_FILES };
    for (int i = r->n_loaded > 0 ? 0 : 2; i < 3; i++) {
        struct opd_operator *o = registry_operator(r, name, scopes[i]);
        if (o && o->current)
            return o;
    }
    return NULL;
}

struct version *registry_find(const struct registry *r, const char *name)
{
    const struct opd_operator *o = registry_operator(r, name, SCOPE_FILES);
    return o ? o->current : NULL;
}

struct version *operator_version(const struct opd_operator *o, int number)
{
    struct version *v = o->versions;
    while (v && v->number != number)
        v = v->older;
    return v;
}

struct version *operator_newest(const struct opd_operator *o)
{
    struct version *v = o->versions;
    while (v && v->state == VERSION_FAILED)
        v = v->older;
    return v;
}

const char *registry_suggest(const struct registry *r, const char *name, uint64_t conn,
                             struct suggest *near)
{
    suggest_init(near, name, strlen(name));
    for (size_t i = 0; i < r->n_operators; i++)
        if (registry_see(r, r->operators[i]->name, conn) == r->operators[i])
            suggest_add(near, r->operators[i]->name);
    return suggest_text(near);
}

// A file's is served to nobody while one of its name is shared.
void registry_tell(struct registry *r, const struct opd_operator *o)
{
    bool served = o->current;
    if (served && o->scope == SCOPE_FILES && r->n_loaded > 0)
        served = registry_see(r, o->name, SCOPE_SHARED) == o;
    published_set(&r->published, o->slot, served ? o->current->mark : 0, o->failure);
    if (r->told)
        r->told(r->owner);
}

// One that an operator had which was loaded and has gone. What is left of that in clients can be
// told from another's by its mark.
static uint32_t find_free_slot(const struct registry *r)
{
    bool *used = mem_zalloc((size_t)r->published.n_given + 1, sizeof *used);
    uint32_t slot = 1;
    for (size_t i = 0; i < r->n_operators; i++)
        used[r->operators[i]->slot] = true;
    while (slot <= r->published.n_given && used[slot])
        slot++;
    free(used);
    return slot <= r->published.n_given ? slot : 0;
}

uint32_t registry_slot(struct registry *r, struct opd_operator *o, struct opd_err *err)
{
    if (o->slot || !published_open(&r->published, err))
        return o->slot;
    if (published_full(&r->published) && o->scope != SCOPE_FILES)
        o->slot = find_free_slot(r);
    if (!o->slot)
        o->slot = published_give(&r->published, err);
    registry_tell(r, o);
    return o->slot;
}

// One that comes or goes may hide others of its name, or show them.
static void tell_namesakes(struct registry *r, const struct opd_operator *o)
{
    size_t at;
    find_operator(r, o->name, SCOPE_FILES, &at);
    for (; at < r->n_operators && r->operators[at]->runs == o->runs; at++) {
        r->operators[at]->changes++;
        registry_tell(r, r->operators[at]);
    }
}

void registry_serve(struct registry *r, struct opd_operator *o, struct version *v)
{
    struct version *old = o->current;
    if (old == v)
        return;
    o->current = v;
    o->changes++;
    if (v) {
        v->state = VERSION_SERVING;
        version_tell_derived(v);
    }
    if (old)
        version_retire(old);
    r->count += (v != NULL) - (old != NULL);
    r->generation++;
    registry_tell(r, o);
    if (!v != !old)
        tell_namesakes(r, o);
}

// The oldest that nobody needs goes when there are too many.
static void forget_oldest(struct opd_operator *o)
{
    int n = 0;
    struct version **last = NULL;
    for (struct version **at = &o->versions; *at; at = &(*at)->older, n++)
        if (*at != o->current && (*at)->number != o->pinned)
            last = at;
    if (n <= REGISTRY_MAX_VERSIONS || !last)
        return;
    struct version *v = *last;
    *last = v->older;
    o->changes++;
    v->older = NULL;
    version_unref(v);
}

static struct opd_operator *add_version(struct registry *r, struct version *v)
{
    struct opd_operator *o = v->of;
    if (!o)
        version_set_operator(v, o = registry_make_operator(r, v->op->name, SCOPE_FILES));
    v->number = ++o->last_version;
    v->mark = o->scope == SCOPE_FILES ? (uint32_t)v->number : MARK_LOADED | ++r->n_marks;
    o->runs->compiles.n += v->compiles.n;
    o->runs->compiles.ns += v->compiles.ns;
    v->older = o->versions;
    o->versions = version_ref(v);
    version_tell_derived(v);
    return o;
}

void registry_publish(struct registry *r, struct version *v)
{
    struct opd_operator *o = add_version(r, v);
    o->failure = 0;
    if (o->pinned && o->current)
        version_retire(v);
    else
        registry_serve(r, o, v);
    registry_tell(r, o); // that the last edit has not failed
    forget_oldest(o);
}

void registry_fail(struct registry *r, struct version *v, const struct opd_err *err)
{
    struct opd_operator *o = add_version(r, v);
    version_retire(v);
    v->state = VERSION_FAILED;
    opd_err_copy(&v->err, err);
    forget_oldest(o);
}

static void drop_versions(struct opd_operator *o)
{
    o->current = NULL;
    for (struct version *v; (v = o->versions) != NULL;) {
        o->versions = v->older;
        v->older = NULL;
        version_unref(v);
    }
}

void registry_remove(struct registry *r, struct opd_operator *o)
{
    size_t at;
    registry_serve(r, o, NULL);
    drop_versions(o);
    o->changes++;
    o->slot = 0;
    find_operator(r, o->name, o->scope, &at);
    memmove(&r->operators[at], &r->operators[at + 1],
            (--r->n_operators - at) * sizeof(struct opd_operator *));
    r->n_loaded--;
    operator_unref(o);
}

void registry_finish(struct registry *r)
{
    for (size_t i = 0; i < r->n_operators; i++) {
        drop_versions(r->operators[i]);
        operator_unref(r->operators[i]);
    }
    free(r->operators);
    published_finish(&r->published);
    *r = (struct registry){ 0 };
}
