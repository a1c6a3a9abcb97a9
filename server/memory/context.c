#include "memory/context.h"

#include <stdlib.h>

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
    ctx->drop(ctx->version);
    free(ctx);
}
