#include "torch/cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "executor/cuda_blas.h"
#include "executor/cuda_driver.h"
#include "torch/functions.h"
#include "torch/image.h"
#include "torch/loaded.h"

enum { MAX_DEVICES = 64, MAX_STREAMS = 32, N_REPORTS = 64, SHARED_LIMIT = 48 << 10 };

// Kernels report into the host's memory: each call has the next of N_REPORTS places, which stay
// until they are told, so that nothing is lost. Where nothing is wrong that costs nothing; a copy
// behind each call would take the device 8 us.
struct reports {
    struct cuda_use *next; // of all that can report
    volatile uint64_t *host;
    drv_addr device; // where kernels find them
    atomic_ullong n_calls;
};

struct cuda_use {
    const struct loaded *plan;
    void *context;
    int n_streams; // under the lock, as `streams`; MAX_STREAMS + 1: too many to know
    void *streams[MAX_STREAMS];
    void *events[MAX_STREAMS]; // once the plan is retired
    _Atomic(void *) last;      // stream
    struct reports *reports;   // or NULL
};

static const struct cuda_driver *cu;
static void *contexts[MAX_DEVICES];
static struct cuda_blas *blas[MAX_DEVICES]; // under blas_lock, as what they keep
static bool asked_blas[MAX_DEVICES];
static pthread_mutex_t blas_lock = PTHREAD_MUTEX_INITIALIZER;
static bool forked;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_use *reporting; // under the lock
static atomic_int n_reporting;

void cuda_forked(void)
{
    forked = true;
    pthread_mutex_init(&lock, NULL);
    pthread_mutex_init(&blas_lock, NULL);
}

static bool enter(void *context, bool *pushed, struct opd_err *err)
{
    void *current = NULL;
    *pushed = false;
    if (!CU_OK(cuCtxGetCurrent(&current)))
        return false;
    if (current == context)
        return true;
    return *pushed = CU_OK(cuCtxPushCurrent(context));
}

static void leave(bool pushed)
{
    void *popped;
    if (pushed)
        cu->cuCtxPopCurrent(&popped);
}

// --- images

static bool open_device(int index, struct opd_err *err)
{
    int device;
    if (!torch.has_cuda || index < 0 || index >= MAX_DEVICES || forked)
        return opd_err_set(err, OPD_E_unavailable, "no CUDA in this process");
    if (!cu && !(cu = cuda_driver_load(err)))
        return false;
    return contexts[index] || (CU_OK(cuDeviceGet(&device, index)) &&
                               CU_OK(cuDevicePrimaryCtxRetain(&contexts[index], device)));
}

// Now, and not at its first launch, which a graph may capture.
static bool load_now(void *function, struct opd_err *err)
{
    int registers;
    return cu->cuFuncLoad ? CU_OK(cuFuncLoad(function))
                          : CU_OK(cuFuncGetAttribute(&registers, DRV_FUNC_REGISTERS, function));
}

bool cuda_load(struct image *image, const void *payload, struct opd_err *err)
{
    bool pushed;
    image->shared_limit = SHARED_LIMIT;
    if (!open_device(image->device_index, err) ||
        !enter(contexts[image->device_index], &pushed, err))
        return false;
    bool ok = CU_OK(cuModuleLoadData(&image->module, payload)) &&
              CU_OK(cuModuleGetFunction(&image->function, image->module, image->symbol)) &&
              load_now(image->function, err);
    leave(pushed);
    return ok;
}

void cuda_unload(struct image *image)
{
    struct opd_err ignored = { 0 };
    bool pushed = false;
    if (image->module && !forked && enter(contexts[image->device_index], &pushed, &ignored))
        cu->cuModuleUnload(image->module);
    leave(pushed);
    opd_err_clear(&ignored);
}

// --- products of matrices

bool cuda_has_blas(int device_index)
{
    struct opd_err ignored = { 0 };
    bool pushed = false;
    pthread_mutex_lock(&blas_lock);
    if (open_device(device_index, &ignored) && !asked_blas[device_index] &&
        enter(contexts[device_index], &pushed, &ignored)) {
        asked_blas[device_index] = true;
        blas[device_index] = cuda_blas_new(cu, false);
        leave(pushed);
    }
    bool has = device_index >= 0 && device_index < MAX_DEVICES && !forked && blas[device_index];
    pthread_mutex_unlock(&blas_lock);
    opd_err_clear(&ignored);
    return has;
}

bool cuda_matmul_workspace(int device_index, const struct backend_matmul *m, uint64_t *size)
{
    struct opd_err ignored = { 0 };
    bool pushed = false;
    if (!cuda_has_blas(device_index))
        return false;
    pthread_mutex_lock(&blas_lock);
    bool ok = enter(contexts[device_index], &pushed, &ignored) &&
              cuda_blas_ask(blas[device_index], m, size, &ignored);
    leave(pushed);
    pthread_mutex_unlock(&blas_lock);
    opd_err_clear(&ignored);
    return ok;
}

bool cuda_matmul(struct cuda_run *run, const struct backend_matmul *m, uint64_t workspace,
                 uint64_t size, struct opd_err *err)
{
    pthread_mutex_lock(&blas_lock);
    bool ok = cuda_blas_matmul(blas[run->plan->device_index], m, workspace, size, run->stream, err);
    pthread_mutex_unlock(&blas_lock);
    return ok;
}

// --- what may still run

static struct reports *new_reports(struct opd_err *err)
{
    struct reports *r = mem_zalloc(1, sizeof *r);
    void *host = NULL;
    if (CU_OK(cuMemHostAlloc(&host, N_REPORTS * sizeof(uint64_t),
                             DRV_HOST_PORTABLE | DRV_HOST_DEVICE_MAP)) &&
        CU_OK(cuMemHostGetDevicePointer(&r->device, host, 0))) {
        memset(host, 0, N_REPORTS * sizeof(uint64_t));
        r->host = host;
        return r;
    }
    if (host)
        cu->cuMemFreeHost(host);
    free(r);
    return NULL;
}

static void free_reports(struct cuda_use *use)
{
    struct reports *r = use->reports;
    if (!r)
        return;
    pthread_mutex_lock(&lock);
    struct cuda_use **at = &reporting;
    while (*at != use)
        at = &(*at)->reports->next;
    *at = r->next;
    atomic_fetch_sub(&n_reporting, 1);
    pthread_mutex_unlock(&lock);
    if (!forked)
        cu->cuMemFreeHost((void *)(uintptr_t)r->host);
    free(r);
}

bool cuda_use_new(struct loaded *p, struct opd_err *err)
{
    bool pushed = false;
    if (!open_device(p->device_index, err))
        return false;
    struct cuda_use *use = mem_zalloc(1, sizeof *use);
    use->context = contexts[p->device_index];
    use->plan = p;
    if (p->x.head->report >= 0) {
        use->reports = enter(use->context, &pushed, err) ? new_reports(err) : NULL;
        leave(pushed);
        if (!use->reports) {
            free(use);
            return false;
        }
        pthread_mutex_lock(&lock);
        use->reports->next = reporting;
        reporting = use;
        atomic_fetch_add(&n_reporting, 1);
        pthread_mutex_unlock(&lock);
    }
    p->cuda = use;
    return true;
}

uint64_t cuda_next_report(struct cuda_use *use)
{
    unsigned long long n = atomic_fetch_add(&use->reports->n_calls, 1);
    return use->reports->device + n % N_REPORTS * sizeof(uint64_t);
}

// Records an event where there is none yet. False: it cannot be now.
static bool mark_stream(struct cuda_use *use, int i)
{
    int status = DRV_CAPTURE_NONE;
    if (use->events[i])
        return true;
    if (cu->cuStreamIsCapturing(use->streams[i], &status) == DRV_SUCCESS &&
        status != DRV_CAPTURE_NONE)
        return false;
    if (cu->cuEventCreate(&use->events[i], DRV_EVENT_DISABLE_TIMING) != DRV_SUCCESS)
        return false;
    if (cu->cuEventRecord(use->events[i], use->streams[i]) == DRV_SUCCESS)
        return true;
    use->streams[i] = NULL; // it was destroyed: behind all that there is, then
    return cu->cuCtxSynchronize() == DRV_SUCCESS &&
           cu->cuEventRecord(use->events[i], NULL) == DRV_SUCCESS;
}

static bool is_over(struct cuda_use *use)
{
    if (use->n_streams > MAX_STREAMS)
        return cu->cuCtxSynchronize() == DRV_SUCCESS;
    bool over = true;
    for (int i = 0; i < use->n_streams; i++)
        over = mark_stream(use, i) && cu->cuEventQuery(use->events[i]) == DRV_SUCCESS && over;
    return over;
}

bool cuda_use_is_over(struct cuda_use *use)
{
    struct opd_err ignored = { 0 };
    bool pushed;
    if (!use || forked)
        return true;
    bool over = enter(use->context, &pushed, &ignored) && is_over(use);
    leave(pushed);
    opd_err_clear(&ignored);
    return over;
}

void cuda_use_free(struct cuda_use *use)
{
    struct opd_err ignored = { 0 };
    bool pushed = false;
    if (!use)
        return;
    if (!forked && enter(use->context, &pushed, &ignored)) {
        for (int i = 0; i < use->n_streams && i < MAX_STREAMS; i++)
            if (use->events[i])
                cu->cuEventDestroy(use->events[i]);
        free_reports(use);
    }
    leave(pushed);
    opd_err_clear(&ignored);
    free(use);
}

static void note_stream(struct cuda_use *use, void *stream)
{
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < use->n_streams && i < MAX_STREAMS && use->streams[i] != stream)
        i++;
    if (i == use->n_streams && i < MAX_STREAMS)
        use->streams[use->n_streams++] = stream;
    else if (i == MAX_STREAMS)
        use->n_streams = MAX_STREAMS + 1;
    atomic_store_explicit(&use->last, stream, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
}

static void forget_plan(void *plan)
{
    loaded_unref(plan);
}

// The graph that is being captured holds the plan from now on. Where it cannot, the plan stays.
static void give_to_graph(struct cuda_run *run)
{
    int status = DRV_CAPTURE_NONE;
    void *graph = NULL, *object = NULL;
    loaded_ref(run->plan);
    if (cu->cuStreamGetCaptureInfo && cu->cuUserObjectCreate && cu->cuGraphRetainUserObject &&
        cu->cuStreamGetCaptureInfo(run->stream, &status, NULL, &graph, NULL, NULL) == DRV_SUCCESS &&
        graph &&
        cu->cuUserObjectCreate(&object, run->plan, forget_plan, 1,
                               DRV_USER_OBJECT_NO_DESTRUCTOR_SYNC) == DRV_SUCCESS)
        cu->cuGraphRetainUserObject(graph, object, 1, DRV_GRAPH_USER_OBJECT_MOVE);
}

// --- runs

bool cuda_begin(struct cuda_run *run, struct loaded *p, struct opd_err *err)
{
    int status = DRV_CAPTURE_NONE;
    struct cuda_use *use = p->cuda;
    *run = (struct cuda_run){ .plan = p };
    if (forked || torch.aoti_torch_get_current_cuda_stream(p->device_index, &run->stream))
        return opd_err_set(err, OPD_E_unavailable, "no CUDA stream in this process");
    if (!enter(use->context, &run->pushed, err))
        return false;
    if (!CU_OK(cuStreamIsCapturing(run->stream, &status))) {
        leave(run->pushed);
        return false;
    }
    run->capturing = status != DRV_CAPTURE_NONE;
    if (run->capturing)
        give_to_graph(run);
    else if (use->n_streams == 0 ||
             atomic_load_explicit(&use->last, memory_order_relaxed) != run->stream)
        note_stream(use, run->stream);
    return true;
}

bool cuda_zero(struct cuda_run *run, uint64_t address, uint64_t size, struct opd_err *err)
{
    if (size == 0)
        return true;
    return (address | size) % 4 == 0 ? CU_OK(cuMemsetD32Async(address, 0, size / 4, run->stream))
                                     : CU_OK(cuMemsetD8Async(address, 0, size, run->stream));
}

bool cuda_launch(struct cuda_run *run, struct image *image, const struct exported_step *step,
                 const void *args, struct opd_err *err)
{
    size_t args_size = step->args_size;
    void *extra[] = {
        (void *)DRV_PARAM_BUFFER, (void *)(uintptr_t)args, (void *)DRV_PARAM_SIZE, &args_size,
        (void *)DRV_PARAM_END,
    };
    if (step->shared_size > image->shared_limit) {
        if (!CU_OK(cuFuncSetAttribute(image->function, DRV_FUNC_MAX_DYNAMIC_SHARED,
                                      (int)step->shared_size)))
            return false;
        image->shared_limit = step->shared_size;
    }
    return CU_OK(cuLaunchKernel(image->function, step->grid[0], step->grid[1], step->grid[2],
                                step->block[0], step->block[1], step->block[2], step->shared_size,
                                run->stream, NULL, args_size ? extra : NULL));
}

void cuda_end(struct cuda_run *run)
{
    leave(run->pushed);
}

// --- what kernels reported

static void tell(const struct loaded *p, uint64_t key, unsigned long long ago, struct opd_err *err)
{
    struct buf text = { 0 };
    exported_explain(&p->x, key, &text);
    opd_err_set(err, OPD_E_invalid_argument,
                "%s: %s (found late, as it ran in torch's process: it was the call of version %u "
                "with these shapes %llu call%s before the last one; OPD_ISOLATED=1 finds it where "
                "it is made)",
                p->op->name, buf_str(&text), p->version, ago, ago == 1 ? "" : "s");
    buf_finish(&text);
}

// Of the last calls the first that reported.
static uint64_t find_call(const struct reports *r, unsigned long long *ago)
{
    unsigned long long n = atomic_load(&r->n_calls);
    unsigned long long from = n > N_REPORTS ? n - N_REPORTS : 0;
    for (unsigned long long i = from; i < n; i++) {
        uint64_t key = r->host[i % N_REPORTS];
        *ago = n - 1 - i;
        if (key)
            return key;
    }
    return 0;
}

static bool has_reported(const struct reports *r)
{
    for (int i = 0; i < N_REPORTS; i++)
        if (r->host[i])
            return true;
    return false;
}

// Told once: all that may still report is waited for.
static void clear_reports(struct cuda_use *use)
{
    cu->cuCtxSynchronize();
    memset((void *)(uintptr_t)use->reports->host, 0, N_REPORTS * sizeof(uint64_t));
}

static bool find_report(struct cuda_use *use, bool wait, struct opd_err *err)
{
    unsigned long long ago = 0;
    struct opd_err ignored = { 0 };
    bool pushed = false;
    if (!wait && !has_reported(use->reports))
        return true;
    if (enter(use->context, &pushed, &ignored)) {
        if (wait)
            cu->cuCtxSynchronize();
        uint64_t key = find_call(use->reports, &ago);
        if (key) {
            tell(use->plan, key, ago, err);
            clear_reports(use);
        }
    }
    leave(pushed);
    opd_err_clear(&ignored);
    return err->code == OPD_E_none;
}

bool cuda_find_reports(bool wait, struct opd_err *err)
{
    if (atomic_load_explicit(&n_reporting, memory_order_relaxed) == 0 || forked)
        return true;
    pthread_mutex_lock(&lock);
    bool ok = true;
    for (struct cuda_use *use = reporting; ok && use; use = use->reports->next)
        ok = find_report(use, wait, err);
    pthread_mutex_unlock(&lock);
    return ok;
}
