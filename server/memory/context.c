#include "memory/context.h"

#include <stdlib.h>

#include "base/mem.h"

void context_make_list(struct context_list *list, int n)
{
    *list = (struct context_list){ .n = n,
                                   .of = mem_zalloc((size_t)n + 1, sizeof *list->of),
                                   .versions = mem_zalloc((size_t)n + 1, sizeof *list->versions) };
}

void context_free(struct context *ctx)
{
    if (!ctx)
        return;
    for (int i = 0; i < OP_MAX_INPUTS; i++)
        tensor_unref(ctx->inputs[i]);
    for (int i = 0; i < OP_MAX_OUTPUTS; i++)
        tensor_unref(ctx->outputs[i]);
    for (int i = 0; i < OP_MAX_TEMPS; i++)
        storage_unref(ctx->saved[i]);
    for (int i = 0; i < OP_MAX_INPUTS + OP_MAX_OUTPUTS; i++) {
        for (int k = 0; k < ctx->lists[i].n; k++)
            tensor_unref(ctx->lists[i].of[k]);
        free(ctx->lists[i].of);
        free(ctx->lists[i].versions);
    }
    free((void *)(uintptr_t)ctx->request.lists);
    ctx->drop(ctx->version);
    free(ctx);
}
