#include "executor/cuda_blas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cuda_library.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"

enum { N_KEPT = 512, MOST_ALIGNMENT = 256 };
#define WORKSPACE_ALIGNMENT ((size_t)256)

// Numbers of cuBLASLt's ABI.
enum { LT_R_32F = 0, LT_R_64F = 1, LT_R_16F = 2, LT_R_16BF = 14 };                // cudaDataType
enum { LT_COMPUTE_32F = 68, LT_COMPUTE_64F = 70, LT_COMPUTE_32F_FAST_TF32 = 77 }; // computeType
enum { LT_OP_T = 1 };                                                             // Operation
enum { LT_DESC_TRANS_A = 3, LT_DESC_TRANS_B = 4 };                                // DescAttributes
enum { LT_PREF_WORKSPACE = 1, LT_PREF_ALIGNMENT_A = 5 }; // Pref..., B, C and D: 6 to 8
enum { LT_SUCCESS, LT_ALLOC_FAILED = 3, LT_EXECUTION_FAILED = 13, LT_NOT_SUPPORTED = 15 }; // Status

struct lt_algo { // cublasLtMatmulAlgo_t
    uint64_t data[8];
};

struct lt_heuristic { // cublasLtMatmulHeuristicResult_t
    struct lt_algo algo;
    size_t workspace_size;
    int status;
    float waves;
    int reserved[4];
};

struct lt {
#define LT(name, parameters) int(*name) parameters;
#include "executor/blas_lt.def"
#undef LT
};

// All that the choice of an algorithm depends on.
struct problem {
    int64_t m, n, k, lda, ldb, ldd;
    uint32_t dtype, result;
    uint32_t trans_a, trans_b, tf32, accumulate;
    uint32_t alignment[4]; // of cuBLAS's A, B, C and D
    uint64_t workspace;    // bytes that it may take
};

struct solution {
    bool used;
    struct problem problem;
    void *desc, *a, *b, *d;
    struct lt_algo algo;
    size_t workspace_size; // that it takes
};

struct cuda_blas {
    struct lt lt;
    const struct cuda_driver *cu;
    char name[64];
    void *handle;
    drv_addr workspace;
    size_t n_shared;              // bytes of it that have been given out in this turn
    struct solution kept[N_KEPT]; // by the problem's hash; the newer takes the place of the older
};

// Runs a call of the library of `blas`, and tells in `err` why it fails: both are in scope.
#define LT_OK(call) check_call(blas, blas->lt.call, #call, err)

static bool check_call(const struct cuda_blas *blas, int status, const char *call,
                       struct opd_err *err)
{
    enum opd_err_code code = status == LT_ALLOC_FAILED       ? OPD_E_out_of_memory
                             : status == LT_EXECUTION_FAILED ? OPD_E_kernel_fault
                                                             : OPD_E_internal;
    return status == LT_SUCCESS ||
           opd_err_set(err, code,
                       "%.*s of %s: status %d; \"opd --blas own\" multiplies matrices without it",
                       (int)strcspn(call, "("), call, blas->name, status);
}

static int type_of(enum opd_dtype dtype)
{
    return dtype == OPD_DTYPE_float16    ? LT_R_16F
           : dtype == OPD_DTYPE_bfloat16 ? LT_R_16BF
           : dtype == OPD_DTYPE_float32  ? LT_R_32F
                                         : LT_R_64F;
}

static bool find_functions(struct cuda_blas *blas, void *library)
{
    size_t (*version)(void);
    *(void **)&version = dlsym(library, "cublasLtGetVersion");
#define LT(function, parameters)                                                                   \
    *(void **)&blas->lt.function = dlsym(library, #function);                                      \
    if (!blas->lt.function)                                                                        \
        return false;
#include "executor/blas_lt.def"
#undef LT
    // 130002: 13.0.2; before 12: 11103 is 11.1.3.
    size_t v = version ? version() : 0, unit = v >= 100000 ? 10000 : 1000;
    snprintf(blas->name, sizeof blas->name, "cuBLASLt %zu.%zu.%zu", v / unit, v % unit / 100,
             v % 100);
    return true;
}

static bool start(struct cuda_blas *blas, bool workspace, struct opd_err *err)
{
    const struct cuda_driver *cu = blas->cu;
    return LT_OK(cublasLtCreate(&blas->handle)) &&
           (!workspace || CU_OK(cuMemAlloc(&blas->workspace, CUDA_BLAS_WORKSPACE)));
}

struct cuda_blas *cuda_blas_new(const struct cuda_driver *cu, bool workspace)
{
    static const char *const names[] = { "libcublasLt.so.13", "libcublasLt.so.12",
                                         "libcublasLt.so.11", "libcublasLt.so", NULL };
    static const char *const wheels[] = { "/nvidia/cu13/lib", "/nvidia/cublas/lib", NULL };
    const char *named = getenv("OPD_CUBLASLT");
    void *library = cuda_library_open(
        &(struct cuda_library){ .names = names, .wheels = wheels, .named = named });
    struct opd_err err = { 0 };
    if (!library) {
        if (named && named[0])
            log_warn("OPD_CUBLASLT is %s, where libcublasLt cannot be loaded; expected the library "
                     "or its folder",
                     named);
        return NULL;
    }
    struct cuda_blas *blas = mem_zalloc(1, sizeof *blas);
    blas->cu = cu;
    if (!find_functions(blas, library))
        log_warn("libcublasLt lacks functions, it is too old and not used");
    else if (!start(blas, workspace, &err))
        log_warn("cuBLASLt is not used: %s", err.msg);
    else
        return blas;
    opd_err_clear(&err);
    cuda_blas_free(blas);
    return NULL;
}

static void drop_solution(struct cuda_blas *blas, struct solution *s)
{
    if (s->desc)
        blas->lt.cublasLtMatmulDescDestroy(s->desc);
    void *const layouts[] = { s->a, s->b, s->d };
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            blas->lt.cublasLtMatrixLayoutDestroy(layouts[i]);
    *s = (struct solution){ 0 };
}

void cuda_blas_free(struct cuda_blas *blas)
{
    if (!blas)
        return;
    for (int i = 0; i < N_KEPT; i++)
        drop_solution(blas, &blas->kept[i]);
    if (blas->workspace)
        blas->cu->cuMemFree(blas->workspace);
    if (blas->handle)
        blas->lt.cublasLtDestroy(blas->handle);
    free(blas);
}

const char *cuda_blas_name(const struct cuda_blas *blas)
{
    return blas->name;
}

static bool describe(struct cuda_blas *blas, struct solution *s, struct opd_err *err)
{
    const struct problem *p = &s->problem;
    const int transposed = LT_OP_T;
    int type = type_of((enum opd_dtype)p->dtype), result = type_of((enum opd_dtype)p->result);
    int compute = type == LT_R_64F              ? LT_COMPUTE_64F
                  : type == LT_R_32F && p->tf32 ? LT_COMPUTE_32F_FAST_TF32
                                                : LT_COMPUTE_32F;
    uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;
    uint64_t a[] = { m, k }, b[] = { k, n }; // as they lie there: turned around where transposed
    return LT_OK(cublasLtMatmulDescCreate(&s->desc, compute,
                                          type == LT_R_64F ? LT_R_64F : LT_R_32F)) &&
           (!p->trans_a || LT_OK(cublasLtMatmulDescSetAttribute(s->desc, LT_DESC_TRANS_A,
                                                                &transposed, sizeof transposed))) &&
           (!p->trans_b || LT_OK(cublasLtMatmulDescSetAttribute(s->desc, LT_DESC_TRANS_B,
                                                                &transposed, sizeof transposed))) &&
           LT_OK(cublasLtMatrixLayoutCreate(&s->a, type, a[p->trans_a], a[!p->trans_a], p->lda)) &&
           LT_OK(cublasLtMatrixLayoutCreate(&s->b, type, b[p->trans_b], b[!p->trans_b], p->ldb)) &&
           LT_OK(cublasLtMatrixLayoutCreate(&s->d, result, m, n, p->ldd));
}

static bool choose_algorithm(struct cuda_blas *blas, struct solution *s, struct opd_err *err)
{
    struct lt_heuristic best = { 0 };
    void *preference = NULL;
    int n = 0;
    bool ok = LT_OK(cublasLtMatmulPreferenceCreate(&preference)) &&
              LT_OK(cublasLtMatmulPreferenceSetAttribute(preference, LT_PREF_WORKSPACE,
                                                         &s->problem.workspace, sizeof(uint64_t)));
    for (int i = 0; ok && i < 4; i++)
        ok = LT_OK(cublasLtMatmulPreferenceSetAttribute(
            preference, LT_PREF_ALIGNMENT_A + i, &s->problem.alignment[i], sizeof(uint32_t)));
    ok = ok && LT_OK(cublasLtMatmulAlgoGetHeuristic(blas->handle, s->desc, s->a, s->b, s->d, s->d,
                                                    preference, 1, &best, &n));
    if (ok && (n == 0 || best.status != 0))
        ok = check_call(blas, best.status ? best.status : LT_NOT_SUPPORTED, "no algorithm", err);
    s->algo = best.algo;
    s->workspace_size = best.workspace_size;
    if (preference)
        blas->lt.cublasLtMatmulPreferenceDestroy(preference);
    return ok;
}

static uint32_t alignment_of(device_addr addr)
{
    uint64_t lowest = addr & -addr;
    return lowest == 0 || lowest > MOST_ALIGNMENT ? MOST_ALIGNMENT : (uint32_t)lowest;
}

// cuBLAS counts along columns first: to it, each of our matrices is its own transpose. So it is
// asked for d' [n, m] = b' [n, k] @ a' [k, m].
static struct problem turn_around(const struct backend_matmul *m, uint64_t workspace)
{
    struct problem p;
    memset(&p, 0, sizeof p); // it is compared as bytes
    p.m = m->n;
    p.n = m->m;
    p.k = m->k;
    p.lda = m->b.stride;
    p.ldb = m->a.stride;
    p.ldd = m->d.stride;
    p.dtype = m->dtype;
    p.result = m->result;
    p.trans_a = m->b.transposed;
    p.trans_b = m->a.transposed;
    p.tf32 = m->tf32;
    p.accumulate = m->accumulate;
    p.workspace = workspace;
    p.alignment[0] = alignment_of(m->b.addr);
    p.alignment[1] = alignment_of(m->a.addr);
    p.alignment[2] = p.alignment[3] = alignment_of(m->d.addr);
    return p;
}

static struct solution *solve(struct cuda_blas *blas, const struct problem *p, struct opd_err *err)
{
    struct solution *s = &blas->kept[hash_bytes(p, sizeof *p, 0) % N_KEPT];
    if (s->used && memcmp(&s->problem, p, sizeof *p) == 0)
        return s;
    drop_solution(blas, s);
    s->problem = *p;
    s->used = describe(blas, s, err) && choose_algorithm(blas, s, err);
    if (s->used)
        return s;
    drop_solution(blas, s);
    return NULL;
}

static const struct solution *solve_product(struct cuda_blas *blas, const struct backend_matmul *m,
                                            uint64_t workspace, struct opd_err *err)
{
    const struct problem p = turn_around(m, workspace);
    const struct solution *s = solve(blas, &p, err);
    if (!s)
        opd_err_prefix(err, "a product of [%lld, %lld] and [%lld, %lld]", (long long)m->m,
                       (long long)m->k, (long long)m->k, (long long)m->n);
    return s;
}

bool cuda_blas_ask(struct cuda_blas *blas, const struct backend_matmul *m, size_t *size,
                   struct opd_err *err)
{
    const struct solution *s = solve_product(blas, m, CUDA_BLAS_WORKSPACE, err);
    if (s)
        *size = (s->workspace_size + WORKSPACE_ALIGNMENT - 1) & ~(WORKSPACE_ALIGNMENT - 1);
    return s;
}

bool cuda_blas_share(struct cuda_blas *blas, const struct backend_matmul *m, drv_addr *out,
                     size_t *out_size, struct opd_err *err)
{
    size_t size;
    if (!cuda_blas_ask(blas, m, &size, err))
        return false;
    if (size > CUDA_BLAS_WORKSPACE - blas->n_shared)
        blas->n_shared = 0;
    *out = size > 0 ? blas->workspace + blas->n_shared : 0;
    *out_size = size;
    blas->n_shared += size;
    return true;
}

bool cuda_blas_matmul(struct cuda_blas *blas, const struct backend_matmul *m, drv_addr workspace,
                      size_t size, void *stream, struct opd_err *err)
{
    if (blas->workspace) {
        workspace = m->workspace ? m->workspace : blas->workspace;
        size = CUDA_BLAS_WORKSPACE;
    }
    const struct solution *s = solve_product(blas, m, CUDA_BLAS_WORKSPACE, err);
    if (s && s->workspace_size > size)
        s = solve_product(blas, m, size, err);
    if (!s)
        return false;
    const double one = 1, none = 0;
    const float one_f = 1, none_f = 0;
    bool wide = m->dtype == OPD_DTYPE_float64;
    const void *alpha = wide ? (const void *)&one : &one_f;
    const void *zero = wide ? (const void *)&none : &none_f;
    void *d = (void *)(uintptr_t)m->d.addr;
    return LT_OK(cublasLtMatmul(blas->handle, s->desc, alpha, (void *)(uintptr_t)m->b.addr, s->a,
                                (void *)(uintptr_t)m->a.addr, s->b, m->accumulate ? alpha : zero, d,
                                s->d, d, s->d, &s->algo, (void *)(uintptr_t)workspace,
                                m->workspace ? s->workspace_size : size, stream));
}
