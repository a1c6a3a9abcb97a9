#include "kernels/load.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "kernels/edit.h"
#include "kernels/events.h"
#include "kernels/registry.h"
#include "kernels/reload.h"
#include "kernels/source.h"

static uint64_t scope_of(uint64_t owner, bool shared)
{
    return shared ? SCOPE_SHARED : owner;
}

static uint64_t size_of(const struct version *v)
{
    return v->op->source_size + strlen(v->text) + strlen(v->common);
}

// The versions that a connection has loaded, by their number and bytes.
static bool check_limits(const struct registry *r, const struct opd_operator *o,
                         const struct source *source, uint64_t owner, struct opd_err *err)
{
    uint64_t size = source->original_size + strlen(source->text);
    int n = o == NULL;
    for (size_t i = 0; i < r->n_operators; i++) {
        if (r->operators[i]->owner != owner)
            continue;
        n++;
        for (const struct version *v = r->operators[i]->versions; v; v = v->older)
            size += size_of(v);
    }
    if (n > LOAD_MAX_OPERATORS)
        return opd_err_set(err, OPD_E_out_of_memory,
                           "this connection has loaded %d operators, more are not allowed; unload "
                           "some",
                           LOAD_MAX_OPERATORS);
    return size <= LOAD_MAX_SIZE ||
           opd_err_set(err, OPD_E_out_of_memory,
                       "the operators that this connection has loaded, with the versions before "
                       "them, would take %llu bytes, at most %d are allowed; unload some",
                       (unsigned long long)size, LOAD_MAX_SIZE);
}

static bool is_served(const struct opd_operator *o, const struct version *v)
{
    return o->current && o->current == operator_newest(o) && o->current->hash == v->hash &&
           strcmp(o->current->path, v->path) == 0;
}

// Takes the reference of op over.
static struct version *begin(struct reload *r, struct op *op, const struct source *source,
                             struct opd_operator *o)
{
    struct version *v = version_new(op, source, r->common, o);
    struct edit *edit = NULL;
    if (is_served(o, v)) {
        version_unref(v);
        return version_ref(o->current);
    }
    edit_add(r, &edit, version_ref(v), clock_ns());
    edit_start(r, edit);
    return v;
}

struct version *load_begin(struct reload *r, const struct source *source, uint64_t owner,
                           bool shared, struct opd_err *err)
{
    struct op *op = op_parse_whole(source->file, source->original, source->original_size,
                                   source->text, err);
    if (!op)
        return NULL;
    uint64_t scope = scope_of(owner, shared);
    struct opd_operator *o = registry_operator(r->registry, op->name, scope);
    if (o && o->owner != owner)
        opd_err_set(err, OPD_E_invalid_argument,
                    "operator %s is shared by connection %llu already, from %s; give yours another "
                    "name, or load it for yourself",
                    op->name, (unsigned long long)o->owner, o->current ? o->current->path : "?");
    if (err->code || !check_limits(r->registry, o, source, owner, err)) {
        op_unref(op);
        return NULL;
    }
    o = registry_make_operator(r->registry, op->name, scope);
    o->owner = owner;
    return begin(r, op, source, o);
}

struct opd_operator *load_replaced(const struct reload *r, const struct version *v)
{
    const struct opd_operator *o = v->of;
    bool shared = o->scope == SCOPE_SHARED;
    struct opd_operator *other = registry_operator(r->registry, o->name,
                                                   scope_of(o->owner, !shared));
    return other && other->owner == o->owner ? other : NULL;
}

void load_remove(struct reload *r, struct opd_operator *o)
{
    if (o->current) {
        log_info("operator %s of connection %llu is withdrawn", o->name,
                 (unsigned long long)o->owner);
        events_add(r->events,
                   &(struct event){ .kind = "unloaded", .op = o->name, .file = o->current->path });
    }
    registry_remove(r->registry, o);
}
