#include "torch/opd_torch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/version_page.h"
#include "torch/boxed.h"
#include "torch/cpu.h"
#include "torch/cuda.h"
#include "torch/direct.h"
#include "torch/functions.h"
#include "torch/image.h"
#include "torch/run.h"

static _Thread_local char text[1200];

static const char *tell(struct opd_err *err)
{
    snprintf(text, sizeof text, "%s: %s", opd_err_name(err->code), err->msg);
    opd_err_clear(err);
    return text;
}

int opd_torch_abi(void)
{
    return OPD_TORCH_ABI;
}

static void before_fork(void)
{
    image_lock();
    loaded_lock();
}

static void after_fork(void)
{
    loaded_unlock();
    image_unlock();
}

static void in_child(void)
{
    after_fork();
    cpu_forked();
    cuda_forked();
}

const char *opd_torch_start(bool isolated)
{
    struct opd_err err = { 0 };
    if (!torch_find(&err))
        return tell(&err);
    loaded_isolated = isolated;
    pthread_atfork(before_fork, after_fork, in_child);
    return NULL;
}

// Where a backward finds what it reads among its arguments: behind the gradients of outputs.
static void place_reads(struct torch_op *op, const uint8_t *reads)
{
    int16_t at = (int16_t)op->n_outputs;
    for (uint32_t i = 0; i < op->n_inputs; i++)
        op->inputs_at[i] = reads[i] ? at++ : -1;
    for (uint32_t i = 0; i < op->n_outputs; i++)
        op->outputs_at[i] = reads[op->n_inputs + i] ? at++ : -1;
    op->saved_at = at;
}

const char *opd_torch_register(const char *name, const char *schema, int kind, const char *op_name,
                               const char *layout, uint32_t n_inputs, uint32_t n_outputs,
                               uint32_t n_saved, uint32_t mutated, const uint8_t *reads,
                               int *number)
{
    struct opd_err err = { 0 };
    struct torch_op *op = mem_zalloc(1, sizeof *op);
    if (n_inputs > 32 || n_outputs > 16 || n_outputs + n_saved >= RUN_MAX_RESULTS ||
        !call_parse(layout, op->arguments)) {
        opd_err_set(&err, OPD_E_unavailable, "%s has too many arguments", op_name);
        free(op);
        return tell(&err);
    }
    op->kind = (enum loaded_kind)kind;
    op->name = mem_strdup(op_name);
    op->n_inputs = n_inputs;
    op->n_outputs = n_outputs;
    op->n_saved = n_saved;
    op->mutated = mutated;
    for (const struct call_argument *a = op->arguments; a->type; a++)
        op->lists = op->lists || (a->type == 't' && a->is_list);
    place_reads(op, reads);
    loaded_register(op);
    *number = boxed_register(name, schema, op, &err);
    return *number < 0 ? tell(&err) : NULL;
}

const char *opd_torch_load(int number, int fd, uint32_t slot, uint64_t *serial)
{
    struct opd_err err = { 0 };
    struct torch_op *op = boxed_operator(number);
    return op && loaded_add(op, fd, slot, serial, &err) ? NULL : tell(&err);
}

bool opd_torch_set_direct(size_t tensor_at, size_t keys_at, uint64_t of_names)
{
    return direct_set(tensor_at, keys_at, of_names);
}

void opd_torch_add_plain(uint64_t keys)
{
    direct_add_plain(keys);
}

bool opd_torch_is_plain(void)
{
    return direct_is_plain();
}

bool opd_torch_is_grad_enabled(void)
{
    return direct_is_grad_enabled();
}

int opd_torch_call(int number, void *const *objects, const uint64_t *words, unsigned n_words,
                   uint64_t *results, const char **error)
{
    struct opd_err err;
    struct torch_op *op = boxed_operator(number);
    opd_err_init(&err);
    enum loaded_answer answer = direct_call(op, objects, words, n_words, results, &err);
    *error = answer == LOADED_GONE ? boxed_tell("gone", op->name)
             : err.code != OPD_E_none && err.code != OPD_E_unavailable
                 ? boxed_tell(opd_err_name(err.code), err.msg)
                 : NULL;
    opd_err_clear(&err);
    return *error ? -1 : answer == LOADED_YES;
}

void *opd_torch_wrap(uint64_t tensor)
{
    void *handle = (void *)(uintptr_t)tensor;
    void *object = torch.wrap(handle);
    torch.aoti_torch_delete_tensor_object(handle);
    return object;
}

void opd_torch_set_options(bool isolated, uint32_t version)
{
    loaded_options = (struct loaded_options){
        .is_set = true,
        .isolated = isolated,
        .version = version,
    };
}

void opd_torch_set_alone(bool alone)
{
    loaded_options.alone = alone;
}

const char *opd_torch_set_page(int fd, bool *same)
{
    struct opd_err err = { 0 };
    const struct version_page *page = fd >= 0 ? version_page_open(fd, &err) : NULL;
    *same = false;
    if (fd >= 0 && !page)
        return tell(&err);
    *same = loaded_set_page(page);
    return NULL;
}

const char *opd_torch_synchronize(void)
{
    struct opd_err err = { 0 };
    return cuda_find_reports(true, &err) ? NULL : tell(&err);
}

const char *opd_torch_tell_last(void)
{
    loaded_tell_last(text, sizeof text);
    return text;
}

void opd_torch_count(unsigned *loaded, unsigned *retired)
{
    loaded_count(loaded, retired);
}
