#include "executor/cuda_graphs.h"

static void *executable_of(struct backend_graph *graph)
{
    return graph; // the driver's own
}

bool cuda_has_graphs(struct backend *be)
{
    const struct cuda_driver *cu = cuda_of(be)->cu;
    return cu->cuStreamBeginCapture && cu->cuStreamEndCapture && cu->cuGraphInstantiate &&
           cu->cuGraphLaunch && cu->cuGraphExecDestroy && cu->cuGraphDestroy;
}

// Relaxed: what else this process asks of the driver meanwhile is no part of it.
bool cuda_graph_begin(struct backend *be, struct opd_err *err)
{
    struct cuda_backend *b = cuda_of(be);
    const struct cuda_driver *cu = b->cu;
    b->graph_nodes.size = b->graph_ends.size = 0;
    b->has_step = false;
    b->in_graph = CU_OK(cuStreamBeginCapture(b->stream, DRV_STREAM_CAPTURE_RELAXED));
    return b->in_graph;
}

// What a step ends with, for those that wait for it. One that has made no node ends with what it
// waited for.
static bool end_step(struct cuda_backend *b, struct opd_err *err)
{
    const struct cuda_driver *cu = b->cu;
    const void *nodes = NULL;
    size_t n = 0;
    int status = DRV_CAPTURE_NONE;
    if (!CU_OK(cuStreamGetCaptureInfo(b->stream, &status, NULL, NULL, &nodes, &n)))
        return false;
    buf_append(&b->graph_nodes, nodes, n * sizeof(void *));
    size_t end = b->graph_nodes.size / sizeof(void *);
    buf_append(&b->graph_ends, &end, sizeof end);
    return true;
}

static void add_node(void *node, struct buf *out)
{
    void *const *have = (void *const *)(const void *)out->bytes;
    for (size_t i = 0; i < out->size / sizeof node; i++)
        if (have[i] == node)
            return;
    buf_append(out, &node, sizeof node);
}

static void add_ends(const struct cuda_backend *b, uint32_t step, struct buf *out)
{
    const size_t *ends = (const size_t *)(const void *)b->graph_ends.bytes;
    void *const *nodes = (void *const *)(const void *)b->graph_nodes.bytes;
    for (size_t i = step > 0 ? ends[step - 1] : 0; i < ends[step]; i++)
        add_node(nodes[i], out);
}

bool cuda_graph_step(struct backend *be, const uint32_t *after, size_t n, struct opd_err *err)
{
    struct cuda_backend *b = cuda_of(be);
    const struct cuda_driver *cu = b->cu;
    struct buf nodes = { 0 };
    if (!cu->cuStreamGetCaptureInfo || !cu->cuStreamUpdateCaptureDependencies)
        return true; // a driver of CUDA 11.2: one after the other
    buf_reserve(&nodes, sizeof(void *));
    bool ok = !b->has_step || end_step(b, err);
    for (size_t i = 0; ok && i < n; i++)
        add_ends(b, after[i], &nodes);
    ok = ok && CU_OK(cuStreamUpdateCaptureDependencies(
                   b->stream, (void **)(void *)nodes.bytes, nodes.size / sizeof(void *),
                   DRV_SET_CAPTURE_DEPENDENCIES));
    b->has_step = true;
    buf_finish(&nodes);
    return ok;
}

bool cuda_graph_end(struct backend *be, struct backend_graph **out, struct opd_err *err)
{
    struct cuda_backend *b = cuda_of(be);
    const struct cuda_driver *cu = b->cu;
    void *graph = NULL, *executable = NULL;
    b->in_graph = false;
    bool ok = CU_OK(cuStreamEndCapture(b->stream, &graph)) &&
              CU_OK(cuGraphInstantiate(&executable, graph, 0));
    if (graph)
        cu->cuGraphDestroy(graph);
    *out = ok ? executable : NULL;
    return ok;
}

bool cuda_graph_launch(struct backend *be, struct backend_graph *graph, struct opd_err *err)
{
    struct cuda_backend *b = cuda_of(be);
    const struct cuda_driver *cu = b->cu;
    return CU_OK(cuGraphLaunch(executable_of(graph), b->stream));
}

void cuda_graph_free(struct backend *be, struct backend_graph *graph)
{
    cuda_of(be)->cu->cuGraphExecDestroy(executable_of(graph));
}

void cuda_graphs_finish(struct cuda_backend *b)
{
    buf_finish(&b->graph_nodes);
    buf_finish(&b->graph_ends);
}
