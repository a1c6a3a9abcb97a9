#include "torch/matmul.h"

#include "executor/backend.h"
#include "torch/cuda.h"
#include "torch/functions.h"
#include "torch/loaded.h"

// torch's would be rounded to TF32 only where its user allows that for all products: what an
// operator allows is cuBLASLt's.
static bool is_torchs(const struct loaded *p, const struct exported_matmul *m)
{
    bool rounds = m->tf32 && m->dtype == OPD_DTYPE_float32 && p->device_index >= 0;
    return m->dtype == m->result && !(rounds && cuda_has_blas(p->device_index));
}

static struct backend_matrix place(const struct exported_matrix *of, const uint64_t *addresses)
{
    return (struct backend_matrix){ .addr = addresses ? addresses[of->operand] + of->offset
                                                      : of->offset,
                                    .stride = of->stride,
                                    .transposed = of->transposed != 0 };
}

// `addresses`: of its operands; NULL: all begin at 0.
static struct backend_matmul describe(const struct exported_matmul *m, const uint64_t *addresses)
{
    return (struct backend_matmul){ .dtype = (enum opd_dtype)m->dtype,
                                    .result = (enum opd_dtype)m->result,
                                    .accumulate = m->accumulate != 0,
                                    .tf32 = m->tf32 != 0,
                                    .m = m->m,
                                    .n = m->n,
                                    .k = m->k,
                                    .d = place(&m->d, addresses),
                                    .a = place(&m->a, addresses),
                                    .b = place(&m->b, addresses) };
}

bool matmul_fits(const struct loaded *p, const struct exported_matmul *m, uint64_t *workspace)
{
    *workspace = 0;
    if (is_torchs(p, m))
        return true;
    const struct backend_matmul b = describe(m, NULL);
    return cuda_matmul_workspace(p->device_index, &b, workspace);
}

static void *make_view(const struct loaded *p, const struct exported_matmul *m,
                       const struct exported_matrix *of, int64_t rows, int64_t columns,
                       const uint64_t *addresses)
{
    void *view = NULL;
    int64_t sizes[2] = { rows, columns };
    int64_t strides[2] = { of->stride, 1 };
    if (of->transposed) {
        strides[0] = 1;
        strides[1] = of->stride;
    }
    bool on_cuda = p->device_index >= 0;
    void *data = (void *)(uintptr_t)(addresses[of->operand] + of->offset); // NOLINT
    torch.aoti_torch_create_tensor_from_blob(data, 2, sizes, strides, 0, torch.dtypes[m->dtype],
                                             on_cuda ? torch.cuda : torch.cpu,
                                             on_cuda ? p->device_index : 0, &view);
    return view;
}

bool matmul_run(const struct loaded *p, const struct exported_matmul *m, const uint64_t *addresses,
                struct cuda_run *cuda, uint64_t workspace, struct opd_err *err)
{
    if (!is_torchs(p, m)) {
        const struct backend_matmul b = describe(m, addresses);
        return cuda_matmul(cuda, &b, workspace, p->workspace_size, err);
    }
    void *d = make_view(p, m, &m->d, m->m, m->n, addresses);
    void *a = make_view(p, m, &m->a, m->m, m->k, addresses);
    void *b = make_view(p, m, &m->b, m->k, m->n, addresses);
    bool ok = d && a && b &&
              (m->accumulate ? torch.aoti_torch_addmm_out(d, d, a, b, 1, 1)
                             : torch.aoti_torch_mm_out(d, a, b)) == 0;
    void *views[] = { d, a, b };
    for (int i = 0; i < 3; i++)
        if (views[i])
            torch.aoti_torch_delete_tensor_object(views[i]);
    return ok ||
           opd_err_set(err, OPD_E_internal, "%s: torch's product of matrices failed", p->op->name);
}
