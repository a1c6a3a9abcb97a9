#pragma once

// Graphs of a GPU, as backend.h has them: what the stream is given is captured. Before each step
// the stream is told which nodes the next ones wait for, and it tells after it which those were. A
// graph that is launched ends when all its nodes have, whether or not another waits for them.

#include "executor/cuda_memory.h"

bool cuda_has_graphs(struct backend *be);
bool cuda_graph_begin(struct backend *be, struct opd_err *err);
bool cuda_graph_step(struct backend *be, const uint32_t *after, size_t n, struct opd_err *err);
bool cuda_graph_end(struct backend *be, struct backend_graph **out, struct opd_err *err);
bool cuda_graph_launch(struct backend *be, struct backend_graph *graph, struct opd_err *err);
void cuda_graph_free(struct backend *be, struct backend_graph *graph);
void cuda_graphs_finish(struct cuda_backend *b);
