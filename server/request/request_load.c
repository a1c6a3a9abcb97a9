// Requests about operators that a client brings along.

#include <string.h>

#include "kernels/edit.h"
#include "kernels/load.h"
#include "kernels/source.h"
#include "request/parts.h"
#include "wire/trust.h"

static bool read_text(const value *options, const char *key, char *out, size_t size,
                      struct opd_err *err)
{
    const value *v = value_get(options, key);
    return value_is_nil(v) || (value_is_text(v) && value_copy_str(v, out, size)) ||
           opd_err_set(err, OPD_E_invalid_argument, "load: %s is %s, expected a string below %zu",
                       key, value_type_name(v), size);
}

static bool read_names(const value *options, char *name, size_t name_size, char *folder,
                       size_t folder_size, struct opd_err *err)
{
    if (!read_text(options, "name", name, name_size, err) ||
        !read_text(options, "folder", folder, folder_size, err))
        return false;
    if (!name[0] || strpbrk(name, "/\"\\\n"))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "load: name is '%s', expected that of a file, without folders", name);
    if (folder[0] && folder[0] != '/')
        return opd_err_set(err, OPD_E_invalid_argument,
                           "load: folder is '%s', expected an absolute path, or none", folder);
    return trust_folder(folder, err);
}

static struct source *read_source(const value *params, struct opd_err *err)
{
    char name[256] = "<string>", folder[4096] = "";
    size_t size;
    const char *text = value_bytes(value_at(params, 0), &size);
    if (!read_names(value_at(params, 1), name, sizeof name, folder, sizeof folder, err))
        return NULL;
    if (size > SOURCE_MAX_SIZE) {
        opd_err_set(err, OPD_E_invalid_argument, "load: %s: %zu bytes, expected at most %d", name,
                    size, SOURCE_MAX_SIZE);
        return NULL;
    }
    if (memchr(text, '\0', size)) {
        opd_err_set(err, OPD_E_invalid_argument, "load: %s: holds a zero byte; expected text",
                    name);
        return NULL;
    }
    return source_of_text(folder, name, text, size, err);
}

static bool begin(struct request *req, const value *params, struct opd_err *err)
{
    struct conn *c = req->conn;
    bool share = false;
    if (!request_flag(value_at(params, 1), "load", "shared", &share, err))
        return false;
    struct source *source = read_source(params, err);
    if (source)
        c->load = load_begin(&req->broker->reload, source, c->id, share, err);
    source_free(source);
    return c->load != NULL;
}

// Clients that run it themselves no longer do.
static void remove_operator(struct broker *b, struct opd_operator *o)
{
    for (struct conn *c = b->clients.first; c && o->slot; c = c->next)
        map_remove(&c->exported, o->slot);
    load_remove(&b->reload, o);
}

static enum request_status answer(struct request *req, const struct version *v, struct opd_err *err)
{
    struct broker *b = req->broker;
    memcpy(req->op, v->op->name, sizeof req->op);
    if (v->state == VERSION_FAILED) {
        opd_err_copy(err, &v->err);
        return REQUEST_ERROR;
    }
    if (v->state == VERSION_COMPILING)
        return REQUEST_FAIL(err, OPD_E_unavailable, "%s is not loaded: the daemon is stopping",
                            v->op->name);
    struct opd_operator *replaced = load_replaced(&b->reload, v);
    if (replaced)
        remove_operator(b, replaced);
    size_t map = pack_map_begin(&req->reply);
    pack_key_str(&req->reply, "op", v->op->name);
    pack_key_int(&req->reply, "version", v->number);
    pack_key_str(&req->reply, "warnings", v->op->warnings);
    pack_map_end(&req->reply, map);
    return REQUEST_ANSWERED;
}

enum request_status request_load(struct request *req, const value *params, struct opd_err *err)
{
    struct conn *c = req->conn;
    if (!c->load && req->broker->handover.upgrade)
        return REQUEST_WAIT; // it is for the successor to compile
    if (!c->load && !begin(req, params, err))
        return REQUEST_ERROR;
    if (edit_compiles(&req->broker->reload, c->load))
        return REQUEST_WAIT;
    struct version *v = c->load;
    c->load = NULL;
    enum request_status status = answer(req, v, err);
    version_unref(v);
    return status;
}

enum request_status request_unload(struct request *req, const value *params, struct opd_err *err)
{
    struct opd_operator *o = request_operator(req, value_at(params, 0), err);
    if (!o)
        return REQUEST_ERROR;
    if (o->owner != req->conn->id)
        return REQUEST_FAIL(err, OPD_E_not_found, "this connection has loaded no operator '%s'",
                            o->name);
    remove_operator(req->broker, o);
    pack_nil(&req->reply);
    return REQUEST_ANSWERED;
}

void request_unload_all(struct conn *c)
{
    const struct registry *r = &c->broker->registry;
    edit_drop_loaded(&c->broker->reload, c->id);
    version_unref(c->load);
    c->load = NULL;
    for (size_t i = r->n_loaded > 0 ? r->n_operators : 0; i-- > 0;)
        if (r->operators[i]->owner == c->id)
            remove_operator(c->broker, r->operators[i]);
}
