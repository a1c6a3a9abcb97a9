#include "executor/cpu_blas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

// CBLAS's words.
enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

struct cpu_blas {
    char name[64];
    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*dgemm)(int order, int trans_a, int trans_b, int m, int n, int k, double alpha,
                  const double *a, int lda, const double *b, int ldb, double beta, double *c,
                  int ldc);
};

// The last two are whatever the system has chosen, often the reference BLAS, which is slower than
// our own kernel: only what says that it is OpenBLAS is taken.
static const char *const names[] = { "libopenblas.so.0", "libopenblas.so", "libcblas.so.3",
                                     "libblas.so.3" };

static bool take(struct cpu_blas *blas, void *library)
{
    const char *(*config)(void);
    *(void **)&config = dlsym(library, "openblas_get_config");
    *(void **)&blas->sgemm = dlsym(library, "cblas_sgemm");
    *(void **)&blas->dgemm = dlsym(library, "cblas_dgemm");
    if (!config || !blas->sgemm || !blas->dgemm)
        return false;
    const char *text = config(); // "OpenBLAS 0.3.21 DYNAMIC_ARCH ..."
    if (strstr(text, "USE64BITINT"))
        return false;
    const char *version = strchr(text, ' ');
    size_t length = version ? (size_t)(version - text) + 1 + strcspn(version + 1, " ")
                            : strlen(text);
    snprintf(blas->name, sizeof blas->name, "%.*s", (int)length, text);
    return true;
}

const struct cpu_blas *cpu_blas_load(void)
{
    static struct cpu_blas blas;
    setenv("OPENBLAS_NUM_THREADS", "1", 1); // it reads that when it is loaded
    setenv("OMP_NUM_THREADS", "1", 1);
    for (size_t i = 0; i < sizeof names / sizeof *names && !blas.name[0]; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (library && !take(&blas, library)) {
            log_debug("%s is no OpenBLAS with 32-bit sizes, it is not used", names[i]);
            dlclose(library);
        }
    }
    return blas.name[0] ? &blas : NULL;
}

const char *cpu_blas_name(const struct cpu_blas *blas)
{
    return blas->name;
}

// The result in tiles, each a block of the pool's job.
struct product {
    const struct cpu_blas *blas;
    const struct backend_matmul *m;
    int64_t rows, cols; // of a tile
    uint32_t across;    // tiles in a row of them
};

static int64_t at_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

// From element `row` of the first dimension and `col` of the second, once it has been transposed.
static device_addr address(const struct backend_matrix *x, int64_t row, int64_t col, size_t size)
{
    int64_t at = x->transposed ? col * x->stride + row : row * x->stride + col;
    return x->addr + (uint64_t)at * size;
}

static void multiply_tile(const struct product *p, int64_t row, int64_t col)
{
    const struct backend_matmul *m = p->m;
    size_t size = dtype_size(m->dtype);
    int rows = (int)at_least(p->rows, m->m - row), cols = (int)at_least(p->cols, m->n - col);
    int trans_a = m->a.transposed ? TRANS : NO_TRANS, trans_b = m->b.transposed ? TRANS : NO_TRANS;
    void *a = (void *)(uintptr_t)address(&m->a, row, 0, size);
    void *b = (void *)(uintptr_t)address(&m->b, 0, col, size);
    void *d = (void *)(uintptr_t)address(&m->d, row, col, size);
    int lda = (int)m->a.stride, ldb = (int)m->b.stride, ldd = (int)m->d.stride, k = (int)m->k;
    if (m->dtype == OPD_DTYPE_float32)
        p->blas->sgemm(ROW_MAJOR, trans_a, trans_b, rows, cols, k, 1, a, lda, b, ldb,
                       m->accumulate ? 1 : 0, d, ldd);
    else
        p->blas->dgemm(ROW_MAJOR, trans_a, trans_b, rows, cols, k, 1, a, lda, b, ldb,
                       m->accumulate ? 1 : 0, d, ldd);
}

static void run_tiles(struct opd_cpu_worker *w, const struct opd_cpu_job *job, void *shared,
                      unsigned long long begin, unsigned long long end)
{
    (void)w, (void)shared;
    const struct product *p = (const struct product *)(const void *)job->args;
    for (unsigned long long i = begin; i < end; i++)
        multiply_tile(p, (int64_t)(i / p->across) * p->rows, (int64_t)(i % p->across) * p->cols);
}

// Enough tiles for the pool's threads, none so small that the library's own packing costs more than
// the product.
static uint32_t choose_tiles(struct product *p, int workers)
{
    enum { SMALLEST = 128, STEP = 16 };
    int64_t rows = p->m->m, cols = p->m->n, wanted = workers > 1 ? 4 * (int64_t)workers : 1, n = 1;
    while (n < wanted && (rows > SMALLEST || cols > SMALLEST)) {
        int64_t *larger = rows > cols ? &rows : &cols;
        *larger = (*larger / 2 + STEP - 1) / STEP * STEP;
        n = ((p->m->m - 1) / rows + 1) * ((p->m->n - 1) / cols + 1);
    }
    p->rows = rows;
    p->cols = cols;
    p->across = (uint32_t)((p->m->n - 1) / cols + 1);
    return (uint32_t)n;
}

bool cpu_blas_matmul(const struct cpu_blas *blas, struct cpu_pool *pool,
                     const struct backend_matmul *m, struct opd_err *err)
{
    static const struct opd_cpu_kernel kernel = { .abi = OPD_CPU_ABI,
                                                  .name = "matmul",
                                                  .run = run_tiles };
    struct product product = { .blas = blas, .m = m };
    if (m->dtype != m->result || (m->dtype != OPD_DTYPE_float32 && m->dtype != OPD_DTYPE_float64))
        return opd_err_set(err, OPD_E_invalid_argument,
                           "cpu: %s by %s to %s, expected a kernel for it", dtype_name(m->dtype),
                           blas->name, dtype_name(m->result));
    struct opd_cpu_job job = {
        .grid = { choose_tiles(&product, cpu_pool_size(pool)), 1, 1 },
        .block = { 1, 1, 1 },
        .args = (const unsigned char *)&product,
    };
    return cpu_pool_run(pool, &kernel, &job, err);
}
