#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "executor/backend.h"
#include "base/clock.h"
#include "executor/cpu_blas.h"
#include "executor/cpu_guard.h"
#include "executor/cpu_memory.h"
#include "executor/cpu_pool.h"
#include "executor/prints.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/stream_copy.h"

// Launches are done when launch() returns: so every mark has been passed when it is put.

enum { REPLAY_LIMIT_NS = 500000000 };

// A larger copy is done in such pieces, by all cores.
enum { COPY_PIECE = 1 << 20 };
static const size_t COPY_MOST = (size_t)COPY_PIECE << 30;

struct cpu_backend {
    struct backend base;
    struct cpu_pool *pool;
    const struct cpu_blas *blas; // or NULL
    struct cpu_guards guards;
    struct buf args, tensors; // of the launch, with the addresses that the kernel sees
    struct opd_err failure;   // a kernel was stopped from below: this process must end
    uint64_t mark;
    _Atomic uint64_t *shared_mark; // NULL: nobody else looks
    uint64_t stamps[BACKEND_STAMPS];
};

struct backend_program {
    int fd; // open for as long as the object is loaded: its path must not be given to another
    void *object;
    const struct opd_cpu_kernel *kernel;
    size_t args_size;
    struct backend_param *params;
    int n_params;
};

static bool cpu_open(struct backend **out, int index, struct opd_err *err)
{
    if (index != 0)
        return opd_err_set(err, OPD_E_not_found, "there is no device cpu:%d, only cpu", index);
    struct cpu_backend *be = mem_zalloc(1, sizeof *be);
    be->base.ops = &backend_cpu;
    be->pool = cpu_pool_new(err);
    if (!be->pool) {
        free(be);
        return false;
    }
    *out = &be->base;
    return true;
}

static void cpu_close(struct backend *base)
{
    struct cpu_backend *be = (struct cpu_backend *)base;
    cpu_pool_free(be->pool);
    cpu_guards_finish(&be->guards);
    buf_finish(&be->args);
    buf_finish(&be->tensors);
    opd_err_clear(&be->failure);
    free(be);
}

static void read_name(char *name, size_t size, int n_cores)
{
    char line[256], model[80] = "CPU";
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "model name", 10) == 0 && sscanf(line, "%*[^:]: %79[^\n]", model) == 1)
            break;
    }
    if (f)
        fclose(f);
    snprintf(name, size, "%s (%d core%s)", model, n_cores, PLURAL_S(n_cores));
}

static void cpu_info(struct backend *base, struct backend_info *out)
{
    struct cpu_backend *be = (struct cpu_backend *)base;
    struct cpu_memory memory;
    cpu_memory_read(&memory);
    *out = (struct backend_info){
        .target = "cpu",
        .memory_total = memory.total,
        .memory_free = memory.free,
        .context_size = cpu_memory_own(),
        .chunk_granularity = (uint64_t)sysconf(_SC_PAGESIZE),
        .processors = cpu_pool_size(be->pool),
    };
    read_name(out->name, sizeof out->name, out->processors);
    snprintf(out->blas, sizeof out->blas, "%s", be->blas ? cpu_blas_name(be->blas) : "");
}

// A chunk takes memory as it is used: what the others were promised and have not taken yet is not
// free either.
static bool check_memory(const struct cpu_backend *be, uint64_t size, struct opd_err *err)
{
    struct cpu_memory memory;
    cpu_memory_read(&memory);
    uint64_t promised = cpu_guards_promised(&be->guards);
    if (!memory.limited || (promised <= memory.free && size <= memory.free - promised))
        return true;
    return opd_err_set(err, OPD_E_out_of_memory,
                       "cpu: no chunk of %llu MiB: the control group of the daemon may have %llu "
                       "MiB, of which %llu are left",
                       (unsigned long long)size >> 20, (unsigned long long)memory.total >> 20,
                       promised < memory.free ? (unsigned long long)(memory.free - promised) >> 20
                                              : 0);
}

static bool cpu_chunk_new(struct backend *base, uint64_t size, int *out_fd, struct opd_err *err)
{
    if (!check_memory((const struct cpu_backend *)base, size, err))
        return false;
    int fd = memfd_create("opd-chunk", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return opd_err_errno(err, OPD_E_out_of_memory, "cpu: no memory file for a chunk");
    // A sealed size: a client that maps it cannot make it shorter under our feet.
    if (ftruncate(fd, (off_t)size) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        opd_err_errno(err, OPD_E_out_of_memory, "cpu: no chunk of %llu bytes",
                      (unsigned long long)size);
        close(fd);
        return false;
    }
    *out_fd = fd;
    return true;
}

static bool cpu_chunk_map(struct backend *base, int fd, uint64_t size, device_addr *out,
                          struct opd_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return opd_err_errno(err, OPD_E_invalid_argument, "cpu: chunk to map");
    if (size == 0 || st.st_size < 0 || (uint64_t)st.st_size < size)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "cpu: chunk of %lld bytes to be mapped with %llu", (long long)st.st_size,
                           (unsigned long long)size);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return opd_err_errno(err, OPD_E_out_of_memory, "cpu: cannot map a chunk of %llu bytes",
                             (unsigned long long)size);
    *out = (uintptr_t)p;
    cpu_guards_add(&((struct cpu_backend *)base)->guards, (uintptr_t)p, size, fd);
    return true;
}

static void cpu_chunk_unmap(struct backend *base, device_addr addr, uint64_t size)
{
    cpu_guards_remove(&((struct cpu_backend *)base)->guards, (uintptr_t)addr);
    munmap((void *)(uintptr_t)addr, size);
}

static bool check_params(const struct backend_image *image, const struct opd_cpu_kernel *k,
                         struct opd_err *err)
{
    if (image->n_params < 0 || (unsigned)image->n_params != k->n_params)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "kernel %s takes %u parameters, the launch gives %d", k->name,
                           k->n_params, image->n_params);
    for (unsigned i = 0; i < k->n_params; i++) {
        const struct backend_param *have = &image->params[i];
        const struct opd_cpu_param *want = &k->params[i];
        if (have->offset != want->offset || have->size != want->size)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "parameter %u of kernel %s has %u bytes at offset %u, the launch "
                               "gives %u at offset %u",
                               i + 1, k->name, want->size, want->offset, have->size, have->offset);
    }
    return true;
}

static void cpu_unload(struct backend *base, struct backend_program *p)
{
    (void)base;
    if (!p)
        return;
    if (p->object)
        dlclose(p->object);
    file_close(&p->fd);
    free(p->params);
    free(p);
}

static bool load_object(struct backend_program *p, const struct backend_image *image,
                        struct opd_err *err)
{
    p->fd = file_memfd("opd-kernel", image->bytes, image->size);
    if (p->fd < 0)
        return opd_err_errno(err, OPD_E_out_of_memory,
                             "cpu: no memory file for an image of %zu bytes", image->size);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", p->fd);
    p->object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!p->object) {
        const char *why = dlerror();
        bool lasts = strstr(why, "undefined symbol") !=
                     NULL; // else memory or descriptors are short
        return opd_err_set(err, lasts ? OPD_E_compile_error : OPD_E_unavailable,
                           "cpu: the image does not load: %s", why);
    }
    p->kernel = dlsym(p->object, image->symbol);
    if (!p->kernel || p->kernel->abi != OPD_CPU_ABI)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "cpu: no kernel %s of this version in the image; compile it again",
                           image->symbol);
    return check_params(image, p->kernel, err);
}

static bool cpu_load(struct backend *base, const struct backend_image *image,
                     struct backend_program **out, struct opd_err *err)
{
    struct backend_program *p = mem_zalloc(1, sizeof *p);
    p->fd = -1;
    if (!load_object(p, image, err)) {
        cpu_unload(base, p);
        return false;
    }
    static struct opd_cpu_runtime runtime;
    runtime = cpu_runtime;
    runtime.print = prints_format;
    p->kernel->init(&runtime);
    p->n_params = image->n_params;
    p->params = mem_zalloc((size_t)image->n_params, sizeof *p->params);
    memcpy(p->params, image->params, (size_t)image->n_params * sizeof *p->params);
    for (unsigned i = 0; i < p->kernel->n_params; i++)
        p->args_size = p->kernel->params[i].offset + p->kernel->params[i].size;
    *out = p;
    return true;
}

static bool check_launch(const struct backend_launch *l, struct opd_err *err)
{
    const char *name = l->program->kernel->name;
    uint64_t threads = (uint64_t)l->block[0] * l->block[1];
    for (int i = 0; i < 3; i++)
        if (l->grid[i] == 0 || l->block[i] == 0)
            return opd_err_set(err, OPD_E_invalid_argument,
                               "kernel %s: a grid or block with an extent of 0", name);
    if (threads > OPD_CPU_MAX_BLOCK || threads * l->block[2] > OPD_CPU_MAX_BLOCK)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "kernel %s: a block of %u x %u x %u threads, at most %d are allowed",
                           name, l->block[0], l->block[1], l->block[2], OPD_CPU_MAX_BLOCK);
    if (l->grid[0] > INT32_MAX || l->grid[1] > UINT16_MAX || l->grid[2] > UINT16_MAX)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "kernel %s: a grid of %u x %u x %u blocks, at most 2147483647 x 65535 x "
                           "65535 are allowed",
                           name, l->grid[0], l->grid[1], l->grid[2]);
    if (l->shared_size > OPD_CPU_MAX_SHARED)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "kernel %s: %u bytes of shared memory, at most %d are allowed", name,
                           l->shared_size, OPD_CPU_MAX_SHARED);
    if (l->args_size < l->program->args_size)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "kernel %s: %zu bytes of arguments, %zu are needed", name, l->args_size,
                           l->program->args_size);
    return true;
}

// The arguments, with tensors where the kernel sees them.
static void place_tensors(struct cpu_backend *be, const struct backend_launch *l)
{
    be->args.size = be->tensors.size = 0;
    buf_append(&be->args, l->args, l->args_size);
    cpu_guards_begin(&be->guards);
    for (int i = 0; i < l->n_tensors; i++) {
        struct backend_tensor t = l->tensors[i];
        uintptr_t seen = cpu_guards_map(&be->guards, (uintptr_t)t.low, (uintptr_t)t.high);
        t.addr += seen - t.low;
        t.high += seen - t.low;
        t.low = seen;
        memcpy(be->args.bytes + t.arg_offset, &t.addr, sizeof t.addr);
        cpu_fault_fill_pad(&t);
        buf_append(&be->tensors, &t, sizeof t);
    }
}

static struct cpu_fault_scene set_scene(const struct cpu_backend *be,
                                        const struct backend_launch *l)
{
    const struct backend_program *p = l->program;
    return (struct cpu_fault_scene){
        .kernel = p->kernel->name,
        .launch = { .params = p->params,
                    .n_params = p->n_params,
                    .tensors = (const struct backend_tensor *)(const void *)be->tensors.bytes,
                    .n_tensors = l->n_tensors },
        .image_fd = p->fd,
    };
}

// Vectorised code has lost the lines of what is under a condition: a launch that was stopped soon
// runs once more, thread by thread, and most likely stops at the same place.
static struct cpu_fault find_fault(struct cpu_backend *be, const struct opd_cpu_kernel *kernel,
                                   struct opd_cpu_job *job, uint64_t ran_ns)
{
    struct cpu_fault first = *cpu_pool_fault(be->pool);
    if (ran_ns > REPLAY_LIMIT_NS || first.is_exit || first.signal == SIGABRT)
        return first;
    job->plain = 1;
    prints_mute(true); // it has printed the same already
    cpu_pool_run(be->pool, kernel, job, NULL);
    prints_mute(false);
    if (!cpu_pool_fault(be->pool) || cpu_pool_fault(be->pool)->signal != first.signal)
        return first;
    struct cpu_fault second = *cpu_pool_fault(be->pool);
    for (int i = 0; i < first.n_pcs && second.n_pcs < CPU_FAULT_MAX_PCS; i++)
        second.pcs[second.n_pcs++] = first.pcs[i];
    return second;
}

static bool cpu_launch(struct backend *base, const struct backend_launch *l, struct opd_err *err)
{
    struct cpu_backend *be = (struct cpu_backend *)base;
    if (!check_launch(l, err))
        return false;
    place_tensors(be, l);
    struct opd_cpu_job job = {
        .grid = { l->grid[0], l->grid[1], l->grid[2] },
        .block = { l->block[0], l->block[1], l->block[2] },
        .args = be->args.bytes,
    };
    struct cpu_fault_scene scene = set_scene(be, l);
    uint64_t begun = clock_ns();
    if (cpu_pool_run(be->pool, l->program->kernel, &job, err))
        return cpu_fault_check_pad(&scene, err);
    if (cpu_pool_fault(be->pool)) {
        struct cpu_fault fault = find_fault(be, l->program->kernel, &job, clock_ns() - begun);
        opd_err_clear(err);
        cpu_fault_find_image(&scene, l->program->object, l->program->kernel);
        cpu_fault_describe(&fault, &scene, err);
        if (be->failure.code == OPD_E_none)
            opd_err_copy(&be->failure, err);
    }
    return false;
}

static void cpu_load_blas(struct backend *base)
{
    ((struct cpu_backend *)base)->blas = cpu_blas_load();
}

static bool cpu_matmul(struct backend *base, const struct backend_matmul *m, struct opd_err *err)
{
    struct cpu_backend *be = (struct cpu_backend *)base;
    if (!be->blas)
        return opd_err_set(err, OPD_E_unavailable, "cpu: no BLAS was found");
    return cpu_blas_matmul(be->blas, be->pool, m, err);
}

// A large copy in pieces, each a block of the pool's job.
struct copy {
    char *dst;
    const char *src;
    size_t size;
};

static void copy_pieces(struct opd_cpu_worker *w, const struct opd_cpu_job *job, void *shared,
                        unsigned long long begin, unsigned long long end)
{
    (void)w, (void)shared;
    const struct copy *c = (const struct copy *)(const void *)job->args;
    for (size_t at = begin * COPY_PIECE; at < end * COPY_PIECE && at < c->size; at += COPY_PIECE)
        stream_copy(c->dst + at, c->src + at,
                    c->size - at < COPY_PIECE ? c->size - at : COPY_PIECE);
}

static bool copy_large(struct cpu_backend *be, const struct copy *c, struct opd_err *err)
{
    static const struct opd_cpu_kernel kernel = { .abi = OPD_CPU_ABI,
                                                  .name = "copy",
                                                  .run = copy_pieces };
    struct opd_cpu_job job = {
        .grid = { (unsigned)((c->size + COPY_PIECE - 1) / COPY_PIECE), 1, 1 },
        .block = { 1, 1, 1 },
        .args = (const unsigned char *)c,
    };
    return cpu_pool_run(be->pool, &kernel, &job, err);
}

static bool cpu_copy(struct backend *base, device_addr dst, device_addr src, size_t size,
                     struct opd_err *err)
{
    if (size && (!dst || !src))
        return opd_err_set(err, OPD_E_invalid_argument, "cpu: copy of %zu bytes to or from nowhere",
                           size);
    uint64_t apart = dst > src ? dst - src : src - dst;
    if (size >= COPY_PIECE && size <= COPY_MOST && apart >= size)
        return copy_large(
            (struct cpu_backend *)base,
            &(struct copy){ (char *)(uintptr_t)dst, (const char *)(uintptr_t)src, size }, err);
    if (size)
        memmove((void *)(uintptr_t)dst, (const void *)(uintptr_t)src, size);
    return true;
}

static bool cpu_fill(struct backend *base, device_addr dst, uint8_t byte, size_t size,
                     struct opd_err *err)
{
    (void)base;
    if (size && !dst)
        return opd_err_set(err, OPD_E_invalid_argument, "cpu: fill of %zu bytes nowhere", size);
    if (size)
        memset((void *)(uintptr_t)dst, byte, size);
    return true;
}

static bool has_failed(const struct cpu_backend *be, struct opd_err *err)
{
    if (be->failure.code != OPD_E_none)
        opd_err_copy(err, &be->failure);
    return be->failure.code != OPD_E_none;
}

static bool cpu_mark(struct backend *base, uint64_t mark, struct opd_err *err)
{
    struct cpu_backend *be = (struct cpu_backend *)base;
    be->mark = mark;
    if (be->shared_mark)
        atomic_store_explicit(be->shared_mark, mark, memory_order_release);
    return !has_failed(be, err);
}

static bool cpu_share_marks(struct backend *base, _Atomic uint64_t *passed)
{
    ((struct cpu_backend *)base)->shared_mark = passed;
    return true;
}

static bool cpu_poll(struct backend *base, uint64_t *out_mark, struct opd_err *err)
{
    struct cpu_backend *be = (struct cpu_backend *)base;
    *out_mark = be->mark;
    return !has_failed(be, err);
}

static bool cpu_stamp(struct backend *base, unsigned place, struct opd_err *err)
{
    (void)err;
    ((struct cpu_backend *)base)->stamps[place] = clock_ns();
    return true;
}

static bool cpu_elapsed(struct backend *base, unsigned from, unsigned to, uint64_t *out_ns,
                        struct opd_err *err)
{
    (void)err;
    const struct cpu_backend *be = (struct cpu_backend *)base;
    *out_ns = be->stamps[to] - be->stamps[from];
    return true;
}

const struct backend_ops backend_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .chunk_new = cpu_chunk_new,
    .chunk_map = cpu_chunk_map,
    .chunk_unmap = cpu_chunk_unmap,
    .load = cpu_load,
    .unload = cpu_unload,
    .blas_load = cpu_load_blas,
    .matmul = cpu_matmul,
    .launch = cpu_launch,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .mark = cpu_mark,
    .poll = cpu_poll,
    .stamp = cpu_stamp,
    .elapsed = cpu_elapsed,
    .share_marks = cpu_share_marks,
};
