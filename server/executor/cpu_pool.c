#include "executor/cpu_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"

// Waking others costs some 30 us: a launch that ends sooner is not worth it.
enum { ALONE_NS = 30000, MAX_WORKERS = 1024, RANGES_PER_WORKER = 8 };

struct pool_thread {
    struct cpu_pool *pool;
    struct opd_cpu_worker worker;
    pthread_t thread;
};

struct cpu_pool {
    int n; // workers; [0] is the caller
    struct pool_thread *threads;
    void *signal_stack; // of the caller
    stack_t signal_stack_before;

    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    unsigned long long round; // under the lock: launches shared with the others so far
    int n_busy;               // under the lock: of the others
    bool stopping;            // under the lock

    // The launch; written before the round is announced.
    const struct opd_cpu_kernel *kernel;
    const struct opd_cpu_job *job;
    unsigned long long n_blocks;
    atomic_ullong next;     // the first block that nobody has taken
    struct opd_err err;     // under the lock: of the first that failed
    struct cpu_fault fault; // the same
};

// False: nothing is left, or it failed.
static bool run_some(struct cpu_pool *pool, struct pool_thread *t, unsigned long long count)
{
    unsigned long long begin = atomic_load_explicit(&pool->next, memory_order_relaxed), end;
    do {
        if (begin >= pool->n_blocks)
            return false;
        end = pool->n_blocks - begin > count ? begin + count : pool->n_blocks;
    } while (!atomic_compare_exchange_weak(&pool->next, &begin, end));
    struct opd_err err = { 0 };
    if (cpu_worker_run(&t->worker, pool->kernel, pool->job, begin, end, &err))
        return true;
    atomic_store(&pool->next, pool->n_blocks);
    pthread_mutex_lock(&pool->lock);
    if (pool->err.code == OPD_E_none) {
        opd_err_copy(&pool->err, &err);
        pool->fault = t->worker.fault;
    }
    pthread_mutex_unlock(&pool->lock);
    opd_err_clear(&err);
    return false;
}

// Large pieces first, small ones in the end, so that all end together.
static void run_rest(struct cpu_pool *pool, struct pool_thread *t)
{
    unsigned long long share;
    do {
        unsigned long long next = atomic_load_explicit(&pool->next, memory_order_relaxed);
        unsigned long long left = next < pool->n_blocks ? pool->n_blocks - next : 0;
        share = left / (unsigned)(pool->n * RANGES_PER_WORKER) + 1;
    } while (run_some(pool, t, share));
}

static void *serve_work(void *arg)
{
    struct pool_thread *t = arg;
    struct cpu_pool *pool = t->pool;
    unsigned long long seen = 0;
    void *signal_stack = NULL;
    stack_t before;
    // Without it, a stack overflow ends the process by itself.
    cpu_fault_enter(&signal_stack, &before, NULL);
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stopping && pool->round == seen)
            pthread_cond_wait(&pool->wake, &pool->lock);
        if (pool->stopping)
            break;
        seen = pool->round;
        pthread_mutex_unlock(&pool->lock);
        run_rest(pool, t);
        pthread_mutex_lock(&pool->lock);
        if (--pool->n_busy == 0)
            pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    cpu_fault_leave(signal_stack, &before);
    return NULL;
}

static int count_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > MAX_WORKERS ? MAX_WORKERS : n;
}

struct cpu_pool *cpu_pool_new(struct opd_err *err)
{
    struct cpu_pool *pool = mem_zalloc(1, sizeof *pool);
    int n = count_cores();
    pool->threads = mem_zalloc((size_t)n, sizeof *pool->threads);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    cpu_fault_watch();
    if (!cpu_fault_enter(&pool->signal_stack, &pool->signal_stack_before, err))
        goto fail;
    for (; pool->n < n; pool->n++) {
        struct pool_thread *t = &pool->threads[pool->n];
        t->pool = pool;
        if (!cpu_worker_init(&t->worker, err)) {
            cpu_worker_finish(&t->worker);
            goto fail;
        }
        t->worker.running = cpu_fault_set_running;
        if (pool->n > 0 && pthread_create(&t->thread, NULL, serve_work, t) != 0) {
            cpu_worker_finish(&t->worker);
            opd_err_set(err, OPD_E_unavailable, "cpu: cannot start worker thread %d of %d", pool->n,
                        n);
            goto fail;
        }
    }
    return pool;
fail:
    cpu_pool_free(pool);
    return NULL;
}

void cpu_pool_free(struct cpu_pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n; i++) {
        if (i > 0)
            pthread_join(pool->threads[i].thread, NULL);
        cpu_worker_finish(&pool->threads[i].worker);
    }
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->lock);
    cpu_fault_leave(pool->signal_stack, &pool->signal_stack_before);
    free(pool->threads);
    free(pool);
}

const struct cpu_fault *cpu_pool_fault(const struct cpu_pool *pool)
{
    return pool->fault.signal || pool->fault.is_exit ? &pool->fault : NULL;
}

int cpu_pool_size(const struct cpu_pool *pool)
{
    return pool->n;
}

// Begins alone, with pieces that double, to learn how long the blocks take. True: there is enough
// left to share.
static bool run_alone(struct cpu_pool *pool)
{
    uint64_t begun = clock_ns();
    for (unsigned long long count = 1; run_some(pool, &pool->threads[0], count); count *= 2)
        if (pool->n > 1 && clock_ns() - begun > ALONE_NS)
            return atomic_load(&pool->next) < pool->n_blocks;
    return false;
}

static void share_rest(struct cpu_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->round++;
    pool->n_busy = pool->n - 1;
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    run_rest(pool, &pool->threads[0]);
    pthread_mutex_lock(&pool->lock);
    while (pool->n_busy > 0)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

bool cpu_pool_run(struct cpu_pool *pool, const struct opd_cpu_kernel *kernel,
                  const struct opd_cpu_job *job, struct opd_err *err)
{
    pool->kernel = kernel;
    pool->job = job;
    pool->fault = (struct cpu_fault){ 0 };
    pool->n_blocks = (unsigned long long)job->grid[0] * job->grid[1] * job->grid[2];
    atomic_store(&pool->next, 0);
    if (run_alone(pool))
        share_rest(pool);
    if (pool->err.code == OPD_E_none)
        return true;
    opd_err_copy(err, &pool->err);
    opd_err_clear(&pool->err);
    return false;
}
