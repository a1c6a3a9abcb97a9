#include "torch/cpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"
#include "executor/cpu_block.h"
#include "torch/functions.h"
#include "torch/image.h"

// Waking others takes some 30 us: a launch that ends sooner is not worth it.
enum { ALONE_NS = 30000, SHARES = 8 };

struct launch {
    const struct opd_cpu_kernel *kernel;
    const struct opd_cpu_job *job;
    unsigned long long n_blocks;
    atomic_ullong next; // the first block that nobody has taken
    uint32_t n_threads;
    pthread_mutex_t lock;
    struct opd_err *err; // under the lock: of the first that failed
    bool failed;         // under the lock
};

static bool forked;
static pthread_key_t ending; // frees a thread's worker
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local struct opd_cpu_worker *own;

void cpu_forked(void)
{
    forked = true;
}

// --- images

static bool write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t n = write(fd, bytes, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        bytes += n;
        size -= (size_t)n;
    }
    return true;
}

bool cpu_load(struct image *image, const void *payload, size_t size, struct opd_err *err)
{
    char path[64];
    image->fd = memfd_create("opd-kernel", MFD_CLOEXEC);
    if (image->fd < 0 || !write_all(image->fd, payload, size))
        return opd_err_errno(err, OPD_E_unavailable, "no memory file for a kernel");
    snprintf(path, sizeof path, "/proc/self/fd/%d", image->fd);
    image->object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!image->object)
        return opd_err_set(err, OPD_E_unavailable, "the kernel does not load: %s", dlerror());
    image->kernel = dlsym(image->object, image->symbol);
    if (!image->kernel || image->kernel->abi != OPD_CPU_ABI)
        return opd_err_set(err, OPD_E_unavailable,
                           "the kernel is of another opd; use daemon and client of one version");
    image->kernel->init(&cpu_runtime);
    return true;
}

void cpu_unload(struct image *image)
{
    if (image->object)
        dlclose(image->object);
    if (image->fd >= 0)
        close(image->fd);
}

// --- workers: one for each thread that ever ran a block

static void free_worker(void *worker)
{
    cpu_worker_finish(worker);
    free(worker);
}

static void make_key(void)
{
    if (pthread_key_create(&ending, free_worker) != 0)
        mem_exhausted(sizeof ending);
}

static struct opd_cpu_worker *get_worker(struct opd_err *err)
{
    if (own)
        return own;
    struct opd_cpu_worker *w = mem_zalloc(1, sizeof *w);
    if (!cpu_worker_init(w, err)) {
        free_worker(w);
        return NULL;
    }
    pthread_once(&once, make_key);
    pthread_setspecific(ending, w);
    return own = w;
}

// --- launches

static long long now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

static void fail(struct launch *l, struct opd_err *err)
{
    atomic_store(&l->next, l->n_blocks);
    pthread_mutex_lock(&l->lock);
    if (!l->failed)
        opd_err_copy(l->err, err);
    l->failed = true;
    pthread_mutex_unlock(&l->lock);
    opd_err_clear(err);
}

// False: nothing is left, or it failed.
static bool run_some(struct launch *l, unsigned long long count)
{
    unsigned long long begin = atomic_load_explicit(&l->next, memory_order_relaxed), end;
    do {
        if (begin >= l->n_blocks)
            return false;
        end = l->n_blocks - begin > count ? begin + count : l->n_blocks;
    } while (!atomic_compare_exchange_weak(&l->next, &begin, end));
    struct opd_err err;
    err.code = OPD_E_none;
    err.log = NULL;
    struct opd_cpu_worker *w = get_worker(&err);
    if (w && cpu_worker_run(w, l->kernel, l->job, begin, end, &err))
        return true;
    fail(l, &err);
    return false;
}

// Large pieces first, small ones in the end, so that all end together.
static void run_rest(int64_t from, int64_t to, void *arg)
{
    struct launch *l = arg;
    unsigned long long share;
    (void)from;
    (void)to;
    do {
        unsigned long long next = atomic_load_explicit(&l->next, memory_order_relaxed);
        unsigned long long left = next < l->n_blocks ? l->n_blocks - next : 0;
        share = left / (l->n_threads * SHARES) + 1;
    } while (run_some(l, share));
}

// Begins alone, with pieces that double, to learn how long the blocks take. True: there is enough
// left to share.
static bool run_alone(struct launch *l)
{
    long long begun = now_ns();
    for (unsigned long long count = 1; run_some(l, count); count *= 2)
        if (now_ns() - begun > ALONE_NS)
            return atomic_load(&l->next) < l->n_blocks;
    return false;
}

bool cpu_launch(const struct image *image, const struct opd_cpu_job *job, atomic_bool *small,
                struct opd_err *err)
{
    struct launch l = { .kernel = image->kernel, .job = job, .err = err, .n_threads = 1 };
    l.n_blocks = (unsigned long long)job->grid[0] * job->grid[1] * job->grid[2];
    pthread_mutex_init(&l.lock, NULL);
    if (l.n_blocks > 1 && !forked && !atomic_load_explicit(small, memory_order_relaxed))
        torch.torch_get_num_threads(&l.n_threads);
    if (l.n_threads < 2) {
        run_some(&l, l.n_blocks);
    } else if (run_alone(&l)) {
        torch.torch_parallel_for(0, l.n_threads, 1, run_rest, &l);
    } else {
        atomic_store_explicit(small, true, memory_order_relaxed);
    }
    pthread_mutex_destroy(&l.lock);
    return !l.failed;
}
