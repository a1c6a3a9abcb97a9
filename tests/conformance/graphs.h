#pragma once

// What is recorded and run as one piece: in its order, or each step after those alone that it waits
// for.

#include "conformance/device.h"

// Launches, copies and fills that were recorded run in their order each time, and not before.
static void graphs_run_what_they_recorded(void **state)
{
    (void)state;
    enum { N = 4096, TIMES = 5 };
    static int32_t got[N], want = 0;
    struct opd_err err = { 0 };
    struct backend_graph *graph = NULL;
    if (!ops->has_graphs || !ops->has_graphs(be))
        skip();
    struct backend_program *p = build("__global__ void step(const int *x, int *y, int k)\n{\n"
                                      "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
                                      "    y[i] = y[i] * 3 + k;\n}\n",
                                      "step");
    fill(OUT, 0, sizeof got);
    must(ops->graph_begin(be, &err), &err);
    for (int k = 1; k < 5; k++) {
        run(p, N / 128, 128, 0, k);
        must(ops->copy(be, chunk, chunk + OUT, sizeof got, &err), &err);
        fill(OUT, 0xee, sizeof got);
        must(ops->copy(be, chunk + OUT, chunk, sizeof got, &err), &err);
    }
    must(ops->graph_end(be, &graph, &err), &err);
    copy_from(got, OUT, sizeof got);
    assert_int_equal(got[N - 1], 0);
    for (int i = 0; i < TIMES; i++) {
        must(ops->graph_launch(be, graph, &err), &err);
        for (int k = 1; k < 5; k++)
            want = (int32_t)((uint32_t)want * 3u + (uint32_t)k);
        run(p, N / 128, 128, 0, i); // between launches the stream is as ever
        want = (int32_t)((uint32_t)want * 3u + (uint32_t)i);
    }
    copy_from(got, OUT, sizeof got);
    for (int i = 0; i < N; i++)
        assert_int_equal(got[i], want);
    ops->graph_free(be, graph);
    ops->unload(be, p);
}

static void begin_step(const uint32_t *after, size_t n)
{
    struct opd_err err = { 0 };
    must(ops->graph_step(be, after, n, &err), &err);
}

static void copy_within(uint64_t to, uint64_t from, size_t size)
{
    struct opd_err err = { 0 };
    must(ops->copy(be, chunk + to, chunk + from, size, &err), &err);
}

static void expect(uint64_t at, uint8_t byte, size_t size)
{
    uint8_t *got = mem_alloc(size);
    copy_from(got, at, size);
    for (size_t i = 0; i < size; i++)
        assert_int_equal(got[i], byte);
    free(got);
}

// Two ways beside each other, which meet; then each of their first places is written again, after
// who has read it. One step does nothing: who waits for it waits for what it waited for.
static void steps_of_graphs_wait_for_what_they_are_told(void **state)
{
    (void)state;
    enum { SIZE = 1 << 20, TIMES = 20 };
    struct opd_err err = { 0 };
    struct backend_graph *graph = NULL;
    if (!ops->has_graphs || !ops->has_graphs(be) || !ops->graph_step)
        skip();
    must(ops->graph_begin(be, &err), &err);
    begin_step(NULL, 0); // 0
    fill(0, 1, SIZE);
    begin_step(NULL, 0); // 1
    fill(1 * SIZE, 2, SIZE);
    begin_step((const uint32_t[]){ 0 }, 1); // 2
    copy_within(2 * SIZE, 0, SIZE);
    begin_step((const uint32_t[]){ 1 }, 1); // 3
    copy_within(3 * SIZE, 1 * SIZE, SIZE);
    begin_step((const uint32_t[]){ 3, 2 }, 2); // 4
    copy_within(4 * SIZE, 2 * SIZE, SIZE);
    copy_within(5 * SIZE, 3 * SIZE, SIZE);
    begin_step((const uint32_t[]){ 3, 2 }, 2); // 5
    fill(0, 9, 0);
    begin_step((const uint32_t[]){ 5, 3 }, 2); // 6
    fill(0, 3, SIZE);
    begin_step((const uint32_t[]){ 3 }, 1); // 7
    fill(1 * SIZE, 4, SIZE);
    must(ops->graph_end(be, &graph, &err), &err);
    for (int i = 0; i < TIMES; i++) {
        for (uint64_t place = 0; place < 6; place++)
            fill(place * SIZE, 0xee, SIZE);
        must(ops->graph_launch(be, graph, &err), &err);
        for (uint64_t place = 0; place < 6; place++)
            expect(place * SIZE, (const uint8_t[]){ 3, 4, 1, 2, 1, 2 }[place], SIZE);
    }
    ops->graph_free(be, graph);
}
