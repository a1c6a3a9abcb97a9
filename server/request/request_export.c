// Requests of clients that run operators in their own process: plans with their kernels, and the
// page that tells which of them is served.

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/exported.h"
#include "base/fdpass.h"
#include "base/version_page.h"
#include "kernels/exports.h"
#include "request/parts.h"
#include "request/run_params.h"

static bool read_direction(struct run *run, const value *v, struct opd_err *err)
{
    char text[16] = "";
    value_copy_str(v, text, sizeof text);
    run->request->direction = strcmp(text, "backward") == 0 ? PLAN_BACKWARD : PLAN_FORWARD;
    return run->request->direction == PLAN_BACKWARD || strcmp(text, "forward") == 0 ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "%s: the direction is '%s', expected 'forward' or 'backward'",
                       run->version->op->name, text);
}

// An array of n booleans, as bits; left alone where there is none.
static bool read_bits(const struct run *run, const char *key, int n, uint32_t *out,
                      struct opd_err *err)
{
    const value *v = value_get(run->options, key);
    uint32_t bits = 0;
    if (value_is_nil(v))
        return true;
    bool good = value_type(v) == VALUE_ARRAY && value_count(v) == (size_t)n;
    for (int i = 0; i < n && good; i++) {
        good = value_type(value_at(v, (size_t)i)) == VALUE_BOOL;
        if (good && value_bool(value_at(v, (size_t)i)))
            bits |= 1u << i;
    }
    *out = bits;
    return good || opd_err_set(err, OPD_E_invalid_argument,
                               "%s: %s is %s of %zu, expected an array of %d, true or false",
                               run->version->op->name, key, value_type_name(v), value_count(v), n);
}

static bool read_options(struct run *run, struct opd_err *err)
{
    const struct op *op = run->version->op;
    struct plan_request *request = run->request;
    bool keep;
    device_fill_plan_request(run->device, request);
    request->wanted = plan_gradients(request);
    if (!run_read_flag(run, "blas", &request->blas, err) ||
        !run_read_flag(run, "keep", &keep, err) ||
        !read_bits(run, "wanted", op->n_inputs, &request->wanted, err) ||
        !read_bits(run, "grad_absent", op->n_outputs, &request->grad_absent, err))
        return false;
    request->keep = keep && op->has_backward;
    return true;
}

// Its kernels are compiled.
static bool send_plan(struct run *run, struct opd_err *err)
{
    struct request *req = run->req;
    struct opd_operator *o = run->version->of;
    uint32_t slot = registry_slot(&req->broker->registry, o, err);
    if (!slot)
        return false;
    req->reply_fd = exports_write(run->version, run->bound, err);
    if (req->reply_fd < 0)
        return false;
    map_put(&req->conn->exported, slot, o);
    const char *warning = run_take_warning(run->req, run->version->of);
    size_t map = pack_map_begin(&req->reply);
    pack_key_int(&req->reply, "version", run->version->number);
    pack_key_uint(&req->reply, "slot", slot);
    pack_key_int(&req->reply, "layout", EXPORTED_LAYOUT);
    if (warning) {
        pack_key_array(&req->reply, "warnings", 1);
        pack_str(&req->reply, warning);
    }
    pack_map_end(&req->reply, map);
    return true;
}

enum request_status request_plan_export(struct request *req, const value *params,
                                        struct opd_err *err)
{
    struct run run;
    run_init(&run, req, value_at(params, 4));
    if (!run_read_version(&run, value_at(params, 0), err) ||
        !read_direction(&run, value_at(params, 1), err) ||
        !run_read_descs(&run, value_at(params, 2), err) ||
        !request_attrs(run.version->op, value_at(params, 3), run.request->attrs, err) ||
        !run_default_device(&run, err) || !read_options(&run, err))
        return REQUEST_ERROR;
    run.bound = version_plan(run.version, run.device, run.request, err);
    if (!run.bound || !run_check_steps(&run, (uint64_t)run.bound->plan->n_steps, err))
        return REQUEST_ERROR;
    enum request_status status = run_load(&run, err);
    if (status != REQUEST_ANSWERED)
        return status;
    return send_plan(&run, err) ? REQUEST_ANSWERED : REQUEST_ERROR;
}

enum request_status request_version_page(struct request *req, const value *params,
                                         struct opd_err *err)
{
    const struct published *p = &req->broker->registry.published;
    char boot[40];
    (void)params;
    if (!published_open(&req->broker->registry.published, err))
        return REQUEST_ERROR;
    req->reply_fd = fdpass_claim(fcntl(p->shared_fd, F_DUPFD_CLOEXEC, 0));
    if (req->reply_fd < 0) {
        opd_err_errno(err, OPD_E_out_of_memory, "the descriptor of the page of versions");
        return REQUEST_ERROR;
    }
    snprintf(boot, sizeof boot, "%016" PRIx64 "%016" PRIx64, p->page->boot[0], p->page->boot[1]);
    size_t map = pack_map_begin(&req->reply);
    pack_key_int(&req->reply, "layout", VERSION_PAGE_LAYOUT);
    pack_key_str(&req->reply, "boot", boot);
    pack_key_uint(&req->reply, "size", sizeof *p->page);
    pack_map_end(&req->reply, map);
    return REQUEST_ANSWERED;
}
