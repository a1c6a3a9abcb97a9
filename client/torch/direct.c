#include "torch/direct.h"

#include "torch/call.h"
#include "torch/cuda.h"
#include "torch/functions.h"
#include "torch/run.h"

enum { N_PLAIN = 4 };

static struct {
    size_t tensor_at, keys_at; // in bytes
    uint64_t of_names;
    uint64_t plain[N_PLAIN];
    int n_plain;
} known;

bool direct_set(size_t tensor_at, size_t keys_at, uint64_t of_names)
{
    known.tensor_at = tensor_at;
    known.keys_at = keys_at;
    known.of_names = of_names;
    return torch.wrap && torch.find_dispatch && torch.count_modes && torch.is_grad_enabled;
}

void direct_add_plain(uint64_t keys)
{
    if (known.n_plain < N_PLAIN)
        known.plain[known.n_plain++] = keys;
}

static bool is_plain(const void *tensor)
{
    uint64_t keys = *(const uint64_t *)(*(const char *const *)tensor + known.keys_at);
    for (int i = 0; i < known.n_plain; i++)
        if (known.plain[i] == keys)
            return true;
    return false;
}

bool direct_is_plain(void)
{
    static _Thread_local const uint64_t *changed;
    if (!changed)
        changed = torch.find_dispatch();
    // What is included, and what is left out.
    return changed[0] == 0 && (changed[1] & ~known.of_names) == 0 && torch.count_modes() == 0;
}

bool direct_is_grad_enabled(void)
{
    return torch.is_grad_enabled();
}

// What Python's object holds is what torch's functions take as a tensor.
static bool find_tensors(const struct torch_op *op, void *const *objects, void **tensors)
{
    for (int i = 0; op->arguments[i].type == 't'; i++) {
        tensors[i] = objects[i] ? (char *)objects[i] + known.tensor_at : NULL;
        if (op->arguments[i].is_list || (objects[i] && !is_plain(tensors[i])))
            return false;
    }
    return true;
}

enum loaded_answer direct_call(struct torch_op *op, void *const *objects, const uint64_t *words,
                               unsigned n_words, uint64_t *out, struct opd_err *err)
{
    void *tensors[CALL_MAX_ARGS];
    struct call call;
    struct loaded *p = NULL;
    if (!op || !find_tensors(op, objects, tensors))
        return LOADED_NO;
    call_gather(&call, op->arguments, tensors, words, n_words);
    enum loaded_answer answer = loaded_find(op, &call, &p);
    if (p && !(cuda_find_reports(false, err) && run_plan(p, &call, out, err)))
        answer = LOADED_NO;
    loaded_unref(p);
    call_finish(&call);
    return answer;
}
