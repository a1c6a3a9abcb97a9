// requests SOCKET: requests from C, timed, for bench_requests.py. Each line of its standard input
// is a side and a number of calls; the answer is the microseconds that one took, or "-" where there
// is no such side here.
//
//   waiting    gelu of [32, 32] by opd_forward(), each waited for
//   pipelined  the same by the request `call`, 128 at once
//   launch     in this process: cuLaunchKernel() of such a kernel and cuStreamSynchronize()
//   enqueue    the same, 128 before each synchronisation
//   replay     of a graph of 20 such calls, each reading what the one before wrote, waited for
//   graph      the same in this process, as a CUDA graph, with cuStreamSynchronize()

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "c/opd.h"

enum { AT_ONCE = 128, IN_GRAPH = 20, SIDE = 32, N = SIDE * SIDE };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void check(bool good, const struct opd_error *err)
{
    if (good)
        return;
    fprintf(stderr, "requests: %s\n", err->message);
    exit(1);
}

// ---- through the daemon -------------------------------------------------------------------------

static struct opd_client *client;
static struct opd_tensor x = { .dtype = "float32", .rank = 2, .shape = { SIDE, SIDE } };

static void append_int(msgpack_packer *p, int64_t v)
{
    msgpack_pack_int64(p, v);
}

static void append_str(msgpack_packer *p, const char *s)
{
    msgpack_pack_str(p, strlen(s));
    msgpack_pack_str_body(p, s, strlen(s));
}

// Sends a request that nobody waits for.
static void send_free(const int64_t *ids, size_t n)
{
    struct opd_error err = { 0 };
    msgpack_sbuffer params;
    msgpack_packer p;
    uint32_t request;
    msgpack_sbuffer_init(&params);
    msgpack_packer_init(&p, &params, msgpack_sbuffer_write);
    msgpack_pack_array(&p, 2);
    append_str(&p, "tensor");
    msgpack_pack_array(&p, n);
    for (size_t i = 0; i < n; i++)
        append_int(&p, ids[i]);
    check(opd_send(client, "free", &params, -1, &request, &err), &err);
    opd_forget(client, request);
    msgpack_sbuffer_destroy(&params);
}

static void prepare(int64_t id)
{
    struct opd_error err = { 0 };
    msgpack_sbuffer params;
    msgpack_packer p;
    msgpack_sbuffer_init(&params);
    msgpack_packer_init(&p, &params, msgpack_sbuffer_write);
    msgpack_pack_array(&p, 5);
    append_int(&p, id);
    append_str(&p, "forward");
    append_str(&p, "gelu");
    msgpack_pack_array(&p, 1);
    msgpack_pack_array(&p, 2);
    append_str(&p, "float32");
    msgpack_pack_array(&p, 2);
    append_int(&p, SIDE);
    append_int(&p, SIDE);
    msgpack_pack_map(&p, 0);
    check(opd_call(client, "prepare", &params, NULL, &err), &err);
    msgpack_sbuffer_destroy(&params);
}

static double time_waiting(int n)
{
    struct opd_error err = { 0 };
    double begin = now();
    for (int i = 0; i < n; i++) {
        int64_t y = opd_new_id(client);
        struct opd_forward_params f = {
            .op = "gelu", .inputs = &x.id, .input_count = 1, .outputs = &y, .output_count = 1
        };
        check(opd_forward(client, &f, &err), &err);
        check(opd_tensor_free(client, &y, 1, &err), &err);
    }
    return (now() - begin) / n;
}

static uint32_t send_call(int64_t id, int64_t y)
{
    struct opd_error err = { 0 };
    char bytes[32];
    uint32_t request;
    msgpack_sbuffer params = { .data = bytes, .alloc = sizeof bytes };
    msgpack_packer p;
    msgpack_packer_init(&p, &params, msgpack_sbuffer_write);
    msgpack_pack_array(&p, 2);
    append_int(&p, id);
    msgpack_pack_array(&p, 2);
    append_int(&p, x.id);
    append_int(&p, y);
    check(opd_send(client, "call", &params, -1, &request, &err), &err);
    return request;
}

static double time_pipelined(int n)
{
    struct opd_error err = { 0 };
    int64_t made[AT_ONCE];
    uint32_t sent[AT_ONCE];
    static bool prepared;
    if (!prepared)
        prepare(1 << 20);
    prepared = true;
    n = (n + AT_ONCE - 1) / AT_ONCE * AT_ONCE;
    double begin = now();
    for (int i = 0; i < n; i += AT_ONCE) {
        for (int k = 0; k < AT_ONCE; k++)
            sent[k] = send_call(1 << 20, made[k] = opd_new_id(client));
        for (int k = 0; k < AT_ONCE; k++)
            check(opd_wait(client, sent[k], NULL, &err), &err);
        send_free(made, AT_ONCE);
    }
    return (now() - begin) / n;
}

static int64_t capture(void)
{
    struct opd_error err = { 0 };
    int64_t graph = opd_new_id(client), from = x.id;
    check(opd_graph_begin(client, graph, NULL, &err), &err);
    for (int i = 0; i < IN_GRAPH; i++) {
        int64_t y = opd_new_id(client);
        struct opd_forward_params f = {
            .op = "gelu", .inputs = &from, .input_count = 1, .outputs = &y, .output_count = 1
        };
        check(opd_forward(client, &f, &err), &err);
        from = y;
    }
    check(opd_graph_end(client, graph, &err), &err);
    return graph;
}

static double time_replay(int n)
{
    struct opd_error err = { 0 };
    static int64_t graph;
    if (!graph)
        graph = capture();
    double begin = now();
    for (int i = 0; i < n; i++)
        check(opd_replay(client, graph, 0, &err), &err);
    return (now() - begin) / n;
}

// ---- in this process ----------------------------------------------------------------------------

static const char ptx[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry gelu(.param .u64 px, .param .u64 py) {\n"
    ".reg .b32 %r<5>; .reg .b64 %d<6>; .reg .f32 %f<5>;\n"
    "ld.param.u64 %d1, [px]; ld.param.u64 %d2, [py];\n"
    "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
    "mad.lo.s32 %r4, %r1, %r2, %r3; mul.wide.s32 %d3, %r4, 4;\n"
    "add.s64 %d4, %d1, %d3; add.s64 %d5, %d2, %d3;\n"
    "ld.global.f32 %f1, [%d4]; mul.f32 %f2, %f1, 0fC01D2B29; ex2.approx.f32 %f2, %f2;\n"
    "add.f32 %f2, %f2, 0f3F800000; rcp.approx.f32 %f2, %f2; mul.f32 %f3, %f1, %f2;\n"
    "st.global.f32 [%d5], %f3; ret; }\n";

struct cuda {
    int (*init)(unsigned flags);
    int (*retain)(void **context, int device);
    int (*set_current)(void *context);
    int (*load)(void **module, const void *image);
    int (*get)(void **function, void *module, const char *name);
    int (*alloc)(unsigned long long *out, size_t size);
    int (*stream)(void **stream, unsigned flags);
    int (*launch)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                  unsigned bz, unsigned shared, void *stream, void **params, void **extra);
    int (*wait)(void *stream);
    int (*begin)(void *stream, int mode);
    int (*end)(void *stream, void **graph);
    int (*instantiate)(void **out, void *graph, unsigned long long flags);
    int (*replay)(void *graph, void *stream);
    void *function, *on, *graph;
    unsigned long long x, y;
};

static bool find_all(struct cuda *c, void *lib)
{
    const struct {
        const char *name;
        void *to;
    } all[] = {
        { "cuInit", &c->init },
        { "cuDevicePrimaryCtxRetain", &c->retain },
        { "cuCtxSetCurrent", &c->set_current },
        { "cuModuleLoadData", &c->load },
        { "cuModuleGetFunction", &c->get },
        { "cuMemAlloc_v2", &c->alloc },
        { "cuStreamCreate", &c->stream },
        { "cuLaunchKernel", &c->launch },
        { "cuStreamSynchronize", &c->wait },
        { "cuStreamBeginCapture_v2", &c->begin },
        { "cuStreamEndCapture", &c->end },
        { "cuGraphInstantiateWithFlags", &c->instantiate },
        { "cuGraphLaunch", &c->replay },
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        void *found = dlsym(lib, all[i].name);
        if (!found)
            return false;
        memcpy(all[i].to, &found, sizeof found);
    }
    return true;
}

// The first device; NULL: there is none.
static struct cuda *open_cuda(void)
{
    static struct cuda c;
    static bool tried, there;
    if (tried)
        return there ? &c : NULL;
    tried = true;
    void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context, *module;
    there = lib && find_all(&c, lib) && c.init(0) == 0 && c.retain(&context, 0) == 0 &&
            c.set_current(context) == 0 && c.load(&module, ptx) == 0 &&
            c.get(&c.function, module, "gelu") == 0 && c.alloc(&c.x, N * 4) == 0 &&
            c.alloc(&c.y, N * 4) == 0 && c.stream(&c.on, 1) == 0;
    return there ? &c : NULL;
}

static double time_launch(int n, int at_once)
{
    struct cuda *c = open_cuda();
    if (!c)
        return -1;
    void *params[] = { &c->x, &c->y };
    double begin = now();
    for (int i = 0; i < n; i++) {
        if (c->launch(c->function, N / 256, 1, 1, 256, 1, 1, 0, c->on, params, NULL) != 0)
            return -1;
        if (i % at_once == at_once - 1)
            c->wait(c->on);
    }
    c->wait(c->on);
    return (now() - begin) / n;
}

static bool make_graph(struct cuda *c)
{
    void *graph, *there[] = { &c->x, &c->y }, *back[] = { &c->y, &c->x };
    if (c->begin(c->on, 0) != 0)
        return false;
    for (int i = 0; i < IN_GRAPH; i++)
        if (c->launch(c->function, N / 256, 1, 1, 256, 1, 1, 0, c->on, i % 2 ? back : there,
                      NULL) != 0)
            return false;
    return c->end(c->on, &graph) == 0 && c->instantiate(&c->graph, graph, 0) == 0;
}

static double time_graph(int n)
{
    struct cuda *c = open_cuda();
    if (!c || (!c->graph && !make_graph(c)))
        return -1;
    double begin = now();
    for (int i = 0; i < n; i++)
        if (c->replay(c->graph, c->on) != 0 || c->wait(c->on) != 0)
            return -1;
    return (now() - begin) / n;
}

static double time_side(const char *side, int n)
{
    if (strcmp(side, "replay") == 0)
        return time_replay(n);
    if (strcmp(side, "graph") == 0)
        return time_graph(n);
    if (strcmp(side, "waiting") == 0)
        return time_waiting(n);
    if (strcmp(side, "pipelined") == 0)
        return time_pipelined(n);
    if (strcmp(side, "launch") == 0)
        return time_launch(n, 1);
    return strcmp(side, "enqueue") == 0 ? time_launch(n, AT_ONCE) : -1;
}

int main(int argc, char **argv)
{
    struct opd_error err = { 0 };
    char side[32];
    int n;
    if (argc != 2)
        return 2;
    client = opd_connect(argv[1], &err);
    check(client != NULL, &err);
    check(opd_tensor_new(client, &x, &err), &err);
    while (scanf("%31s %d", side, &n) == 2) {
        double took = time_side(side, n);
        if (took < 0)
            printf("-\n");
        else
            printf("%.3f\n", took * 1e6);
        fflush(stdout);
    }
    opd_close(client);
    return 0;
}
