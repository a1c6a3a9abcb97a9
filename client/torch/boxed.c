#include "torch/boxed.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "torch/cuda.h"
#include "torch/functions.h"
#include "torch/run.h"

static const uint64_t BUILT_FOR = (uint64_t)2 << 56 | (uint64_t)10 << 48; // torch 2.10

static struct torch_op *operators[BOXED_MAX];

// Python finds its own by these beginnings (_inproc.py).
const char *boxed_tell(const char *kind, const char *text)
{
    static _Thread_local char message[1200];
    snprintf(message, sizeof message, "opd:%s: %s", kind, text);
    return message;
}

static _Noreturn void throw(const char *kind, const char *text)
{
    torch.aoti_torch_check(false, "opd", "client/torch", 0, boxed_tell(kind, text));
    __builtin_unreachable();
}

static bool find_and_run(struct torch_op *op, const uint64_t *stack, uint64_t *out,
                         enum loaded_answer *answer, struct opd_err *err)
{
    struct call call;
    struct loaded *p = NULL;
    call_read(&call, op->arguments, stack);
    *answer = loaded_find(op, &call, &p);
    bool ok = p && cuda_find_reports(false, err) && run_plan(p, &call, out, err);
    loaded_unref(p);
    call_finish(&call);
    return ok;
}

static void call_boxed(unsigned number, uint64_t *stack, uint64_t n_results)
{
    struct torch_op *op = operators[number];
    uint64_t out[RUN_MAX_RESULTS];
    enum loaded_answer answer;
    struct opd_err err;
    err.code = OPD_E_none;
    err.log = NULL;
    bool ok = find_and_run(op, stack, out, &answer, &err);
    call_free(op->arguments, stack);
    if (ok)
        memcpy(stack, out, n_results * sizeof *out);
    else if (answer == LOADED_GONE)
        throw("gone", op->name);
    else if (answer == LOADED_NO || err.code == OPD_E_unavailable)
        throw("not loaded", op->name);
    else
        throw(opd_err_name(err.code), err.msg);
}

// clang-format off
#define ONE(n) \
    static void boxed_##n(uint64_t *stack, uint64_t n_args, uint64_t n_results) \
    { \
        (void)n_args; \
        call_boxed(0x##n, stack, n_results); \
    }
#define NAME(n) boxed_##n,
#define EACH_1(X, n) \
    X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7) \
    X(n##8) X(n##9) X(n##a) X(n##b) X(n##c) X(n##d) X(n##e) X(n##f)
#define EACH_2(X, n) \
    EACH_1(X, n##0) EACH_1(X, n##1) EACH_1(X, n##2) EACH_1(X, n##3) EACH_1(X, n##4) \
    EACH_1(X, n##5) EACH_1(X, n##6) EACH_1(X, n##7) EACH_1(X, n##8) EACH_1(X, n##9) \
    EACH_1(X, n##a) EACH_1(X, n##b) EACH_1(X, n##c) EACH_1(X, n##d) EACH_1(X, n##e) \
    EACH_1(X, n##f)
#define ALL(X) \
    EACH_2(X, 0) EACH_2(X, 1) EACH_2(X, 2) EACH_2(X, 3) EACH_2(X, 4) EACH_2(X, 5) \
    EACH_2(X, 6) EACH_2(X, 7) EACH_2(X, 8) EACH_2(X, 9) EACH_2(X, a) EACH_2(X, b) \
    EACH_2(X, c) EACH_2(X, d) EACH_2(X, e) EACH_2(X, f)
// clang-format on

ALL(ONE)

static void (*const kernels[BOXED_MAX])(uint64_t *, uint64_t, uint64_t) = { ALL(NAME) };

// Never closed: that would take back what is registered.
static struct {
    void *schemas, *cpu, *cuda;
} libraries;

static bool open_libraries(struct opd_err *err)
{
    static const char file[] = "client/torch";
    bool ok = libraries.schemas ||
              (torch.aoti_torch_library_init_fragment("opd", file, 0, &libraries.schemas) == 0 &&
               torch.aoti_torch_library_init_impl("opd", "CPU", file, 0, &libraries.cpu) == 0 &&
               torch.aoti_torch_library_init_impl("opd", "CUDA", file, 0, &libraries.cuda) == 0);
    return ok || opd_err_set(err, OPD_E_unavailable, "torch registers no kernels of ours");
}

static int register_next(const char *name, const char *schema, struct torch_op *op,
                         struct opd_err *err)
{
    static int n;
    if (n == BOXED_MAX) {
        opd_err_set(err, OPD_E_unavailable,
                    "%d kernels have been registered in this process, and there are no more; the "
                    "operator runs in the daemon",
                    BOXED_MAX);
        return -1;
    }
    if (!open_libraries(err))
        return -1;
    operators[n] = op;
    if (torch.aoti_torch_library_def(libraries.schemas, schema) ||
        torch.torch_library_impl(libraries.cpu, name, kernels[n], BUILT_FOR) ||
        torch.torch_library_impl(libraries.cuda, name, kernels[n], BUILT_FOR)) {
        opd_err_set(err, OPD_E_unavailable, "torch refuses the kernel %s", schema);
        return -1;
    }
    return n++;
}

int boxed_register(const char *name, const char *schema, struct torch_op *op, struct opd_err *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    int number = register_next(name, schema, op, err);
    pthread_mutex_unlock(&lock);
    return number;
}

struct torch_op *boxed_operator(int number)
{
    return number >= 0 && number < BOXED_MAX ? operators[number] : NULL;
}
