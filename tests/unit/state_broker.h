#pragma once

// A broker with something of everything that the state holds, made by hand: no device, no socket.

#include <stdlib.h>
#include <string.h>

#include "broker.h"
#include "request/parts.h"
#include "base/hash.h"
#include "base/mem.h"
#include "kernels/pool.h"
#include "request/request.h"
#include "kernels/source.h"
#include "request/trace.h"

static const char state_op[] =
    "//! op      keeps(Tensor x, *, float by=2.0, str how=\"a\") -> Tensor y\n"
    "//! words   how a b\n"
    "//! dtypes  float32\n"
    "//! shape   x [...S]\n"
    "//! shape   y [...S]\n"
    "//! saved   noted float32 [...S]\n"
    "//! example x=[5]\n"
    "//\n"
    "//! forward\n"
    "//!   kernel  keeps_forward\n"
    "//!   bind    n = numel(x)\n"
    "//\n"
    "//! backward grad_x\n"
    "//!   kernel  keeps_backward\n"
    "//!   bind    n = numel(x)\n"
    "\n"
    "__global__ void keeps_forward(const float *x, float *y, float *noted, float by, long long n)\n"
    "{}\n"
    "__global__ void keeps_backward(const float *grad_y, const float *noted, float *grad_x,\n"
    "                               float by, long long n) {}\n";

static struct version *state_version(struct broker *b)
{
    struct opd_err err = { 0 };
    struct source *s = source_of_text("/ops", "keeps.cu", state_op, strlen(state_op), &err);
    struct op *op = op_parse("keeps.cu", state_op, strlen(state_op), &err);
    if (!op || !s)
        abort();
    struct version *v = version_new(op, s, "// common\n", NULL);
    snprintf(s->op, sizeof s->op, "keeps");
    s->n_includes = 1;
    s->includes[0] = (struct source_include){ .path = mem_strdup("/ops/a.cuh"),
                                              .stamp = { .inode = 7, .size = 3 } };
    sources_add(&b->reload.sources, s);
    return v;
}

// Two versions that were served and one that failed.
static void state_add_versions(struct broker *b)
{
    b->reload.common = mem_strdup("// common\n");
    for (int i = 0; i < 2; i++) {
        struct version *v = state_version(b);
        registry_publish(&b->registry, v);
        version_unref(v);
    }
    struct version *failed = state_version(b);
    struct opd_err err = { .code = OPD_E_compile_error, .msg = "keeps.cu:3: wrong" };
    err.log = mem_strdup("the compiler says \"no\"\n");
    registry_fail(&b->registry, failed, &err);
    struct source_failure *f = &b->reload.sources.at[0]->failure;
    *f = (struct source_failure){ .seq = 5, .op = "keeps", .version = 3, .ms = 1.5 };
    f->shadowed = true;
    opd_err_copy(&f->err, &err);
    opd_err_clear(&err);
    version_unref(failed);
    struct opd_operator *o = registry_operator(&b->registry, "keeps", SCOPE_FILES);
    o->failure = 1;
    o->slot = 2;
    b->registry.published.n_given = 3;
    o->failure_text = mem_strdup("keeps: not served");
    o->runs->forward = 11;
    o->runs->backward = 12;
    o->runs->failed = 13;
    o->runs->ns = 14;
    events_add(&b->events,
               &(struct event){ .kind = "reloaded", .op = "keeps", .version = 2, .ms = 3 });
    events_add(&b->events, &(struct event){ .kind = "upgraded" });
}

static struct device *state_add_device(struct broker *b)
{
    struct device *d = devices_add(&b->devices, "cpu");
    d->state = DEVICE_RESTARTING;
    snprintf(d->info.name, sizeof d->info.name, "a processor");
    snprintf(d->info.target, sizeof d->info.target, "cpu");
    snprintf(d->info.uuid, sizeof d->info.uuid, "GPU-1");
    snprintf(d->info.blas, sizeof d->info.blas, "a library");
    snprintf(d->message, sizeof d->message, "it was ended");
    d->info.memory_total = 1u << 30;
    d->info.memory_free = 1u << 29;
    d->info.chunk_granularity = 4096;
    d->info.driver_version = 13;
    d->info.processors = 2;
    d->restart.count = 4;
    d->restart.n_failures = 1;
    d->queue.busy_ns = 5;
    d->regions.n = 6; // 0: a chunk, 1: none, 2: shared memory, 3: a chunk, 4 and 5: clients' memory
    d->regions.list = mem_zalloc(6, sizeof *d->regions.list);
    d->regions.list[0] = (struct device_region){
        .used = true, .ready = true, .fd = 1000, .size = 65536, .serial = 7
    };
    d->regions.list[1].fd = -1;
    d->regions.list[2] = (struct device_region){
        .used = true, .host = true, .ready = true, .fd = 1001, .size = 4096, .serial = 3
    };
    d->regions.list[3] = (struct device_region){
        .used = true, .ready = true, .fd = 1002, .size = 8192, .serial = 4
    };
    d->regions.list[4] = (struct device_region){
        .used = true, .host = true, .ready = true, .fd = 1003, .size = 4096, .serial = 5
    };
    d->regions.list[5] = (struct device_region){
        .used = true, .ipc = true, .fd = -1, .size = 4096, .serial = 6, .handle = { 1, 2, 3 }
    };
    b->devices.n_regions = 8;
    suballoc_add_chunk(&d->space.map, 0, 65536);
    suballoc_add_chunk(&d->space.map, 3, 8192);
    return d;
}

static struct tensor *state_tensor(struct device *d, struct holder *holder, int64_t n)
{
    struct tensor_desc desc = { .dtype = OPD_DTYPE_float32, .rank = 1, .shape = { n } };
    struct storage *s;
    struct opd_err err = { 0 };
    if (storage_new(&d->space, tensor_desc_size(&desc), holder, &s, &err) != ALLOC_OK)
        abort();
    struct tensor *t = tensor_new(s, 0, &desc);
    storage_unref(s);
    return t;
}

static void state_add_id(struct conn *c, uint64_t id, struct tensor *t)
{
    map_put(&c->tensors, id, t);
    t->n_ids++;
}

static void state_add_context(struct conn *c, struct device *d, struct tensor *x, struct tensor *y)
{
    struct context *ctx = mem_zalloc(1, sizeof *ctx);
    struct tensor *noted = state_tensor(d, c->holder, 5);
    ctx->version = version_keep(registry_find(&c->broker->registry, "keeps"));
    ctx->drop = version_drop;
    ctx->serial = 3;
    ctx->device = d;
    ctx->request = (struct plan_request){ .op = ctx->version->op, .keep = true, .on_cpu = true };
    ctx->request.inputs[0] = x->desc;
    for (int i = 0; i < ctx->version->op->n_attrs; i++)
        ctx->request.attrs[i] = ctx->version->op->attrs[i].value;
    ctx->output_descs[0] = y->desc;
    for (int i = 0; i < OP_MAX_TEMPS && !ctx->saved[0]; i++)
        ctx->saved[i] = storage_ref(noted->storage);
    tensor_unref(noted);
    map_put(&c->contexts, 9, ctx);
}

static struct fate *state_fate(enum fate_state state, const char *why)
{
    struct fate *f = mem_zalloc(1, sizeof *f);
    *f = (struct fate){ .refs = 1, .state = state, .why = why ? mem_strdup(why) : NULL };
    return f;
}

// One that the connection has and a tensor is in, and one that could not be opened, of which only
// the tensor is left.
static void state_add_imports(struct conn *c, struct device *d)
{
    struct tensor_desc desc = { .dtype = OPD_DTYPE_uint8, .rank = 1, .shape = { 100 } };
    for (uint32_t i = 0; i < 2; i++) {
        struct import *m = mem_zalloc(1, sizeof *m);
        *m = (struct import){ .refs = 1, .space = &d->space, .region = 4 + i, .size = 4000 };
        m->fate = state_fate(i ? FATE_FAILED : FATE_DONE, NULL);
        struct storage *s = storage_import(m, 64, 100);
        state_add_id(c, 10 + i, tensor_new(s, 0, &desc));
        storage_unref(s);
        if (i == 0)
            map_put(&c->imports, 12, import_ref(m));
        import_unref(m);
    }
}

// The client has gone, what it made is named, exported, and in pieces suspect.
static void state_add_suspect(struct conn *c, struct device *d)
{
    struct holder *gone = holder_new(77);
    snprintf(gone->client, sizeof gone->client, "one that has gone");
    struct tensor *t = state_tensor(d, gone, 50);
    holder_unref(gone);
    struct fate *f = state_fate(FATE_FAILED, "keeps: it failed"), *open = state_fate(0, NULL);
    writes_add(t->storage, 0, 10, f);
    writes_add(t->storage, 60, 70, f);
    writes_add(t->storage, 80, 90, open);
    fate_unref(f);
    fate_unref(open);
    tensor_set_name(&c->broker->names, t, "suspect");
    map_put(&c->exports, 13, storage_ref(t->storage));
    tensor_unref(t);
}

static struct broker *state_make_broker(void)
{
    struct options options = { .socket = mem_strdup("/tmp/opd.sock"),
                               .cache = mem_strdup(""),
                               .compilers = 1,
                               .n_kernels = 1 };
    options.kernels[0] = mem_strdup("/ops");
    struct broker *b = broker_new(&options);
    state_add_versions(b);
    struct device *d = state_add_device(b);
    struct conn *c = conn_new(b, ++b->clients.last_id);
    buf_append(&c->stream.in, "half a mess", 11);
    buf_append(&c->stream.out, "not sent", 8);
    stream_attach_fd(&c->stream, 1004);
    buf_append(&c->stream.out, " this", 5);
    stream_attach_fd(&c->stream, 1005);
    buf_append(&c->stream.out, " and this", 9);
    c->stream.fds[c->stream.n_fds++] = 1006;
    snprintf(c->holder->client, sizeof c->holder->client, "a client");
    c->holder->pid = 78;
    events_follow(&b->events, &c->follower, true);
    trace_follow(c, true);
    map_put(&c->exported, 2, registry_operator(&b->registry, "keeps", SCOPE_FILES));
    b->turn.errors_of[3] = 5;
    b->turn.errors_of[TURN_MAX_ERRORS - 1] = 6;
    b->counters.requests = 21;
    b->turn.n_errors = 22;
    b->counters.contexts = 23;
    b->clients.n_traced = 24;
    pool_count_on(b->pool,
                  &(struct pool_stats){
                      .compiled = 1, .cached = 2, .failed = 3, .seconds = 1.5, .cache_bytes = 4 });
    map_put(&c->warnings, hash_bytes("keeps", 5, 0), (void *)(uintptr_t)1);
    struct tensor *x = state_tensor(d, c->holder, 5), *y = state_tensor(d, c->holder, 1000),
                  *none = state_tensor(d, c->holder, 0);
    state_add_id(c, 1, x);
    state_add_id(c, 2, state_tensor(d, c->holder, 300)); // a hole, when it goes
    state_add_id(c, 3, y);
    state_add_id(c, 4, none);
    request_drop_id(c, 2);
    tensor_set_name(&b->names, y, "named");
    state_add_context(c, d, x, x);
    struct shm *shm = mem_zalloc(1, sizeof *shm);
    *shm = (struct shm){ .fd = -1, .size = 4000, .spaces = { &d->space }, .regions = { 2 } };
    map_put(&c->shms, 5, shm);
    state_add_imports(c, d);
    state_add_suspect(c, d);
    return b;
}

// Takes out what was made up, so that broker_discard() closes no descriptor of somebody else's.
static void state_free_broker(struct broker *b)
{
    for (struct conn *c = b->clients.first; c; c = c->next)
        c->stream.n_fds = c->stream.n_out_fds = 0;
    for (int i = 0; i < b->devices.n; i++)
        for (uint32_t r = 0; r < b->devices.at[i]->regions.n; r++)
            b->devices.at[i]->regions.list[r].fd = -1;
    broker_discard(b);
}
