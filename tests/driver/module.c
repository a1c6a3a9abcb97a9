#include "standin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx.h"

// Modules, their functions and launches; and what kernels print.

enum { MOST_THREADS = 1024, DEFAULT_SHARED = 48 << 10, MOST_SHARED = 227 << 10, REGISTERS = 32 };

struct function { // of a module, as the host has it
    const struct ptx_function *f;
    uint32_t most_dynamic;
};

struct module {
    struct ptx_module *ptx;
    struct function *functions;
};

// --- what is printed

enum { MOST_PRINTED = 1 << 20 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char printed[MOST_PRINTED];
static size_t n_printed;

void prints_add(const char *text, size_t size)
{
    pthread_mutex_lock(&lock);
    if (size <= MOST_PRINTED - n_printed) {
        memcpy(printed + n_printed, text, size);
        n_printed += size;
    }
    pthread_mutex_unlock(&lock);
}

void prints_flush(void)
{
    pthread_mutex_lock(&lock);
    if (n_printed) {
        fwrite(printed, 1, n_printed, stdout);
        fflush(stdout);
        n_printed = 0;
    }
    pthread_mutex_unlock(&lock);
}

// --- modules

int cuModuleLoadData(void **module, const void *image)
{
    RETURN_IF_BROKEN();
    char message[600] = "";
    if (memcmp(image, "\177ELF", 4) == 0) {
        fprintf(stderr, "stand-in: this is a cubin, and no PTX\n");
        return DRV_ERROR_NO_BINARY_FOR_GPU;
    }
    struct ptx_module *ptx = ptx_parse(image, message, sizeof message);
    if (!ptx) {
        fprintf(stderr, "stand-in: %s\n", message);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    struct module *m = calloc(1, sizeof *m);
    struct function *functions = calloc(ptx->n_functions + 1, sizeof *functions);
    if (!m || !functions)
        abort();
    *m = (struct module){ ptx, functions };
    for (size_t k = 0; k < ptx->n_functions; k++)
        functions[k] = (struct function){ ptx->functions[k], DEFAULT_SHARED };
    *module = m;
    return DRV_SUCCESS;
}

int cuModuleUnload(void *module)
{
    struct module *m = module;
    if (context_error()) // a kernel of it may still be running
        return context_error();
    ptx_free(m->ptx);
    free(m->functions);
    free(m);
    return DRV_SUCCESS;
}

int cuModuleGetGlobal_v2(drv_addr *addr, size_t *size, void *module, const char *name)
{
    RETURN_IF_BROKEN();
    const struct ptx_module *m = ((struct module *)module)->ptx;
    for (size_t k = 0; k < m->n_globals; k++)
        if (strcmp(m->globals[k].name, name) == 0) {
            *addr = (uintptr_t)m->globals[k].at;
            *size = m->globals[k].size;
            return DRV_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

int cuModuleGetFunction(void **function, void *module, const char *symbol)
{
    RETURN_IF_BROKEN();
    struct module *m = module;
    for (size_t k = 0; k < m->ptx->n_functions; k++)
        if (m->functions[k].f->is_entry && strcmp(m->functions[k].f->name, symbol) == 0) {
            *function = &m->functions[k];
            return DRV_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

int cuFuncSetAttribute(void *function, enum drv_func_attr attr, int value)
{
    RETURN_IF_BROKEN();
    struct function *f = function;
    if (attr != DRV_FUNC_MAX_DYNAMIC_SHARED || value < 0 ||
        (uint32_t)value + f->f->module->shared_size > MOST_SHARED)
        return DRV_ERROR_INVALID_VALUE;
    f->most_dynamic = (uint32_t)value;
    return DRV_SUCCESS;
}

int cuFuncGetAttribute(int *value, enum drv_func_attr attr, void *function)
{
    RETURN_IF_BROKEN();
    *value = attr == DRV_FUNC_REGISTERS ? REGISTERS
                                        : (int)((struct function *)function)->most_dynamic;
    return DRV_SUCCESS;
}

int cuFuncLoad(void *function)
{
    (void)function;
    return context_error();
}

int cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *size)
{
    RETURN_IF_BROKEN();
    const struct ptx_function *f = ((struct function *)function)->f;
    if (index >= f->n_params)
        return DRV_ERROR_INVALID_VALUE;
    *offset = f->params[index].offset;
    *size = f->params[index].size;
    return DRV_SUCCESS;
}

// --- launches

// The arguments as one piece, from either way to pass them. The caller frees it.
static uint8_t *gather(const struct ptx_function *f, void **params, void **extra)
{
    uint8_t *args = calloc(1, f->args_size + 1);
    size_t given = 0;
    const void *from = NULL;
    if (!args)
        abort();
    for (size_t k = 0; params && k < f->n_params; k++)
        memcpy(args + f->params[k].offset, params[k], f->params[k].size);
    for (; extra && (intptr_t)*extra != DRV_PARAM_END; extra += 2) {
        if ((intptr_t)*extra == DRV_PARAM_BUFFER)
            from = extra[1];
        else
            given = *(const size_t *)extra[1];
    }
    if (from)
        memcpy(args, from, given < f->args_size ? given : f->args_size);
    return args;
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_size,
                   void *stream, void **params, void **extra)
{
    RETURN_IF_BROKEN();
    const struct function *f = function;
    struct launch l = { .function = f->f,
                        .grid = { grid_x, grid_y, grid_z },
                        .block = { block_x, block_y, block_z },
                        .dynamic = shared_size };
    uint64_t threads = (uint64_t)block_x * block_y * block_z;
    if (!grid_x || !grid_y || !grid_z || grid_y > 65535 || grid_z > 65535 || threads == 0 ||
        threads > MOST_THREADS || block_z > 64 || shared_size > f->most_dynamic ||
        f->f->module->shared_size + shared_size > MOST_SHARED ||
        (f->f->max_threads && threads > f->f->max_threads))
        return DRV_ERROR_INVALID_VALUE;
    l.args = gather(f->f, params, extra);
    l.args_size = f->f->args_size;
    int result = stream_launch(&l, stream);
    free(l.args);
    return result;
}
