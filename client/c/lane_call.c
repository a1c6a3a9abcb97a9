#include "c/lane_call.h"

#include <string.h>

#include "c/client.h"

// ---- results that are kept ----------------------------------------------------------------------

static struct kept_result *find_kept(struct lane_calls *l, int64_t id)
{
    struct kept_result *k = l->kept, *end = k + l->n_kept;
    while (k < end && k->id != id)
        k++;
    return k < end ? k : NULL;
}

static void take(struct lane_calls *l, struct kept_result *k)
{
    size_t behind = (size_t)(l->kept + l->n_kept - k) - 1;
    memmove(k, k + 1, behind * sizeof *k);
    l->n_kept--;
}

// Nobody waits: what is sent next comes after it.
static void free_now(struct opd_client *c, const int64_t *ids, size_t count)
{
    struct pack p;
    uint32_t request;
    pack_init(&p, 2);
    pack_str(&p, "tensor");
    pack_ids(&p, ids, count);
    struct iovec parts[2] = { { p.bytes.data, p.bytes.size } };
    if (!p.failed && client_send(c, "free", parts, -1, &request, NULL))
        client_forget(c, request);
    pack_finish(&p);
}

void lane_call_release(struct opd_client *c, int64_t id)
{
    struct kept_result *k = find_kept(&c->calls, id);
    if (!k)
        return;
    take(&c->calls, k);
    free_now(c, &id, 1);
}

void lane_call_clear(struct opd_client *c)
{
    struct lane_calls *l = &c->calls;
    int64_t ids[LANE_KEPT];
    size_t n = l->n_kept;
    for (size_t i = 0; i < n; i++)
        ids[i] = l->kept[i].id;
    l->n = l->n_kept = 0;
    if (n > 0)
        free_now(c, ids, n);
}

void lane_call_sends(struct opd_client *c, const char *method)
{
#define NAME(method) #method,
    static const char *const harmless[] = { LANE_HARMLESS(NAME) };
    if (c->calls.n == 0 && c->calls.n_kept == 0)
        return;
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
        if (strcmp(method, harmless[i]) == 0)
            return;
    lane_call_clear(c);
}

static bool is_result(const struct lane_calls *l, int64_t id)
{
    for (const struct lane_call *call = l->list; call < l->list + l->n; call++)
        for (size_t i = 0; i < call->n_outputs; i++)
            if (call->ids[call->n_inputs + i] == id)
                return true;
    return false;
}

static bool may_keep(struct opd_client *c, int64_t id)
{
    const struct known_desc *desc = known_find(&c->prepared.known, id);
    return desc && desc->bytes <= LANE_KEPT_BYTES && is_result(&c->calls, id) &&
           !find_kept(&c->calls, id);
}

bool lane_call_keep(struct opd_client *c, const int64_t *ids, size_t count)
{
    struct lane_calls *l = &c->calls;
    for (size_t i = 0; i < count; i++) {
        bool twice = false;
        for (size_t k = 0; k < i; k++)
            twice = twice || ids[k] == ids[i];
        if (l->n == 0 || count > LANE_KEPT || twice || c->broken.code || !may_keep(c, ids[i]))
            return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (l->n_kept == LANE_KEPT)
            lane_call_release(c, l->kept[0].id);
        l->kept[l->n_kept++] = (struct kept_result){ .id = ids[i] };
    }
    return true;
}

int64_t lane_call_id(struct opd_client *c)
{
    struct kept_result *k = c->calls.kept, *end = k + c->calls.n_kept;
    while (k < end && k->given)
        k++;
    if (k == end)
        return 0;
    k->given = true;
    return k->id;
}

// ---- calls --------------------------------------------------------------------------------------

static bool same_ids(const int64_t *a, const int64_t *b, size_t n)
{
    return n == 0 || memcmp(a, b, n * sizeof *a) == 0;
}

static bool is_same(const struct lane_call *call, int64_t prepared,
                    const struct opd_forward_params *p)
{
    return call->prepared == prepared && call->n_inputs == p->input_count &&
           call->n_outputs == p->output_count &&
           same_ids(call->ids, p->inputs, p->input_count) &&
           same_ids(call->ids + call->n_inputs, p->outputs, p->output_count);
}

static struct lane_call *find_call(struct lane_calls *l, int64_t prepared,
                                   const struct opd_forward_params *params)
{
    struct lane_call *call = l->list, *end = call + l->n;
    while (call < end && !is_same(call, prepared, params))
        call++;
    return call < end ? call : NULL;
}

void lane_call_note(struct opd_client *c, int64_t prepared, const struct opd_forward_params *p)
{
    struct lane_calls *l = &c->calls;
    if (c->lane.refused || p->input_count + p->output_count > LANE_CALL_IDS ||
        find_call(l, prepared, p))
        return;
    struct lane_call *call = l->n < LANE_CALLS ? &l->list[l->n++]
                                               : &l->list[l->next++ % LANE_CALLS];
    *call = (struct lane_call){ .prepared = prepared,
                                .n_inputs = p->input_count,
                                .n_outputs = p->output_count };
    for (size_t i = 0; i < p->input_count; i++)
        call->ids[i] = p->inputs[i];
    for (size_t i = 0; i < p->output_count; i++)
        call->ids[p->input_count + i] = p->outputs[i];
}

static void arm(struct opd_client *c, struct lane_call *call)
{
    struct pack p;
    struct opd_reply reply = { 0 };
    pack_init(&p, 2);
    pack_int(&p, call->prepared);
    pack_ids(&p, call->ids, call->n_inputs + call->n_outputs);
    bool good = client_call(c, "lane_call", &p, &reply, NULL) &&
                lane_read_entry(&reply, &call->use.entry);
    opd_reply_clear(&reply);
    if (good) {
        call->use.armed = c->lane.epoch;
    } else {
        lane_use_leave(&call->use, false);
        lane_look(c);
    }
}

static bool are_kept(struct lane_calls *l, const struct lane_call *call)
{
    size_t i = 0;
    while (i < call->n_outputs && find_kept(l, call->ids[call->n_inputs + i]))
        i++;
    return i == call->n_outputs;
}

static const char *device_of(const struct opd_client *c, const struct lane_call *call)
{
    const struct known_desc *desc = NULL;
    for (size_t i = 0; i < call->n_inputs && !desc; i++)
        desc = known_find(&c->prepared.known, call->ids[i]);
    return desc ? desc->device : "";
}

// Whether it may be entered.
static bool make_ready(struct opd_client *c, struct lane_call *call)
{
    if (!are_kept(&c->calls, call) || !lane_ready(c, device_of(c, call)) ||
        lane_use_passes(&call->use, &c->lane.waits))
        return false;
    if (call->use.armed != c->lane.epoch)
        arm(c, call);
    return call->use.armed == c->lane.epoch;
}

enum lane_result lane_call_run(struct opd_client *c, int64_t prepared,
                               const struct opd_forward_params *params, struct opd_error *err)
{
    struct lane_calls *l = &c->calls;
    enum lane_result result = LANE_NOT;
    struct lane_call *call = l->n > 0 ? find_call(l, prepared, params) : NULL;
    if (call && make_ready(c, call))
        result = lane_run(c, &call->use.entry, params->deadline, err);
    if (call && result == LANE_REFUSED)
        lane_use_leave(&call->use, true);
    else if (result == LANE_DONE)
        call->use.n_failed = 0;
    for (size_t i = 0; i < params->output_count && l->n_kept > 0; i++) {
        struct kept_result *k = find_kept(l, params->outputs[i]);
        if (k && result == LANE_DONE)
            take(l, k);
        else // as of a call that has failed: there is no such tensor
            lane_call_release(c, params->outputs[i]);
    }
    return result == LANE_REFUSED ? LANE_NOT : result;
}
