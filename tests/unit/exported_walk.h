#pragma once

// Touches all that an exported plan's reader has let through, as a client would.

#include <stdlib.h>
#include <string.h>

#include "base/exported.h"
#include "base/mem.h"

static volatile uint8_t exported_seen;

static void exported_touch(const void *bytes, uint64_t size)
{
    for (uint64_t i = 0; i < size; i++)
        exported_seen ^= ((const uint8_t *)bytes)[i];
}

static void exported_touch_matrix(const struct exported *x, const struct exported_matrix *m)
{
    const struct exported_operand *o = &x->operands[m->operand];
    if (m->offset > o->size || m->size > o->size - m->offset)
        abort();
}

static void exported_touch_step(const struct exported *x, const struct exported_step *s)
{
    if (s->kind == EXPORTED_ZERO)
        exported_touch(&x->operands[s->operand], sizeof *x->operands);
    if (s->kind == EXPORTED_MATMUL) {
        const struct exported_matmul *m = &x->matmuls[s->matmul];
        exported_touch_matrix(x, &m->d);
        exported_touch_matrix(x, &m->a);
        exported_touch_matrix(x, &m->b);
    }
    if (s->kind == EXPORTED_COPY)
        exported_touch(&x->operands[s->operand], sizeof *x->operands);
    if (s->kind != EXPORTED_LAUNCH && s->kind != EXPORTED_COPY)
        return;
    exported_touch(&x->kernels[s->kernel], sizeof *x->kernels);
    uint8_t *args = malloc(s->args_size + 1u); // a sanitizer knows where it ends
    memcpy(args, x->args + s->args, s->args_size);
    for (uint32_t i = 0; i < s->n_slots; i++) {
        const struct exported_slot *slot = &x->slots[s->slots + i];
        uint64_t address = x->operands[slot->operand].size;
        memcpy(args + slot->arg_offset, &address, sizeof address);
    }
    free(args);
}

static void exported_walk(const struct exported *x)
{
    struct buf text = { 0 };
    exported_touch(x->texts + x->head->op, strlen(x->texts + x->head->op));
    exported_touch(x->texts + x->head->target, strlen(x->texts + x->head->target));
    for (uint32_t i = 0; i < x->n_operands; i++)
        buf_append_str(&text, x->texts + x->operands[i].name);
    for (uint32_t i = 0; i < x->n_kernels; i++) {
        const struct exported_kernel *k = &x->kernels[i];
        buf_append_str(&text, x->texts + k->symbol);
        buf_append_str(&text, x->texts + k->name);
        exported_touch(x->payloads + k->payload, k->payload_size);
    }
    for (uint32_t i = 0; i < x->n_steps; i++)
        exported_touch_step(x, &x->steps[i]);
    if (x->head->report >= 0)
        exported_touch(&x->operands[x->head->report], sizeof *x->operands);
    for (int place = 0; place < 64; place++)
        exported_explain(x, ((uint64_t)place << 58) | 1, &text);
    buf_finish(&text);
}
