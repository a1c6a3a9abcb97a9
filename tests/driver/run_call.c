#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Branches, calls, and the functions that the driver brings along.

void run_bra(struct thread *t, const struct ins *i)
{
    t->next = t->frame->function->code + i->target;
}

void run_brx(struct thread *t, const struct ins *i)
{
    uint64_t index = get_bits(t, i->o[0], (struct ptx_type){ K_UNSIGNED, 4, false });
    if (index >= i->n_table)
        fault(t, DRV_ERROR_LAUNCH_FAILED);
    else
        t->next = t->frame->function->code + i->table[index];
}

void run_exit(struct thread *t, const struct ins *i)
{
    (void)i;
    t->state = ENDED;
}

void run_trap(struct thread *t, const struct ins *i)
{
    (void)i;
    fault(t, DRV_ERROR_LAUNCH_FAILED);
}

// Bytes of local memory, from one frame to another.
static void copy_local(struct thread *t, uint32_t to, uint32_t from, uint32_t size)
{
    for (uint32_t k = 0; k < size; k++) {
        const uint8_t *source = access_at(t, S_LOCAL, from + k, 1);
        uint8_t byte = source ? *source : 0;
        uint8_t *target = source ? access_at(t, S_LOCAL, to + k, 1) : NULL;
        if (!target)
            return;
        *target = byte;
    }
}

void run_ret(struct thread *t, const struct ins *i)
{
    const struct frame *frame = t->frame;
    if (!frame->below) {
        run_exit(t, i);
        return;
    }
    if (frame->call->n_results && frame->function->has_result)
        copy_local(t, frame->below->base + frame->call->result.offset,
                   frame->base + frame->function->result.offset, frame->call->result.size);
    frame_pop(t);
}

// --- printf

static uint64_t argument(struct thread *t, const struct ptx_call *call, int k)
{
    uint64_t v = 0;
    uint32_t size = call->args[k].size <= 8 ? call->args[k].size : 8;
    for (uint32_t n = 0; k < call->n_args && n < size; n++) {
        const uint8_t *at = access_at(t, S_LOCAL, t->frame->base + call->args[k].offset + n, 1);
        v |= at ? (uint64_t)*at << 8 * n : 0;
    }
    return v;
}

// A text of the device's memory, cut where there is no room.
static void read_text(struct thread *t, uint64_t addr, char *out, size_t room)
{
    size_t n = 0;
    for (; n + 1 < room; n++) {
        const char *at = access_at(t, S_GENERIC, addr + n, 1);
        if (!at || !*at)
            break;
        out[n] = *at;
    }
    out[n] = '\0';
}

static uint64_t take(struct thread *t, uint64_t *args, unsigned size)
{
    uint64_t v = 0;
    *args = (*args + size - 1) / size * size;
    const void *at = access_at(t, S_GENERIC, *args, size);
    if (at)
        memcpy(&v, at, size);
    *args += size;
    return v;
}

// One conversion, `spec` of "%5.2f"; its argument is as wide as C promotes it.
static int print_one(struct thread *t, char *spec, uint64_t *args, char *out, size_t room)
{
    size_t n = strlen(spec);
    char last = spec[n - 1], text[1024];
    double d;
    if (last == 's') {
        read_text(t, take(t, args, 8), text, sizeof text);
        return snprintf(out, room, spec, text);
    }
    if (strchr("eEfFgGaA", last)) {
        uint64_t bits = take(t, args, 8);
        memcpy(&d, &bits, 8);
        return snprintf(out, room, spec, d);
    }
    if (last == 'p')
        return snprintf(out, room, "%p", (void *)(uintptr_t)take(t, args, 8));
    if (strpbrk(spec, "ljzt"))
        return snprintf(out, room, spec, take(t, args, 8));
    return snprintf(out, room, spec, (unsigned)take(t, args, 4));
}

static void print(struct thread *t, uint64_t format_at, uint64_t args)
{
    char format[2048], out[4096], spec[64];
    size_t n = 0;
    read_text(t, format_at, format, sizeof format);
    for (const char *s = format; *s && n + 1 < sizeof out && !t->block->error;) {
        size_t length = *s == '%' ? 1 + strcspn(s + 1, "%diouxXcsfFeEgGaAp") + 1 : 1;
        if (*s != '%' || s[1] == '%' || length >= sizeof spec || length > strlen(s)) {
            out[n++] = *s;
            s += *s == '%' && s[1] == '%' ? 2 : 1;
            continue;
        }
        memcpy(spec, s, length);
        spec[length] = '\0';
        int wrote = print_one(t, spec, &args, out + n, sizeof out - n);
        n += wrote > 0 ? (size_t)wrote : 0;
        n = n < sizeof out ? n : sizeof out - 1;
        s += length;
    }
    prints_add(out, n);
}

static void fail_assert(struct thread *t, const struct ptx_call *call)
{
    char what[256], file[256], function[256];
    const struct block *b = t->block;
    read_text(t, argument(t, call, 0), what, sizeof what);
    read_text(t, argument(t, call, 1), file, sizeof file);
    read_text(t, argument(t, call, 3), function, sizeof function);
    fprintf(stderr, "%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n",
            file, (unsigned)argument(t, call, 2), function, b->id[0], b->id[1], b->id[2],
            t->tid[0], t->tid[1], t->tid[2], what);
    fault(t, CUDA_ERROR_ASSERT);
}

// --- calls

static const struct ptx_function *function_at(const struct thread *t, uint64_t addr)
{
    const struct ptx_module *m = t->frame->function->module;
    for (size_t k = 0; k < m->n_functions; k++)
        if ((uintptr_t)m->functions[k] == addr)
            return m->functions[k];
    return NULL;
}

// How deep one that is called again will go is not known: what the stack's limit has must do.
static bool overflows(const struct thread *t, const struct ptx_function *f)
{
    size_t used = 0;
    bool again = false;
    for (const struct frame *frame = t->frame; frame; frame = frame->below) {
        used += frame->function->frame_size;
        again = again || frame->function == f;
    }
    return again && used + f->frame_size > stack_limit();
}

static void enter(struct thread *t, const struct ptx_function *f, const struct ptx_call *call)
{
    uint32_t from = t->frame->base;
    if (overflows(t, f)) {
        fault(t, DRV_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    frame_push(t, f, call);
    for (int k = 0; k < (int)f->n_params && k < call->n_args; k++)
        copy_local(t, t->frame->base + f->params[k].offset, from + call->args[k].offset,
                   f->params[k].size);
}

// The host's own memory, as all of the device's is.
static void make_memory(struct thread *t, const struct ptx_call *call)
{
    uint64_t size = argument(t, call, 0), addr = (uintptr_t)malloc(size);
    void *result = access_at(t, S_LOCAL, t->frame->base + call->result.offset, sizeof addr);
    if (addr)
        memory_add(addr, size);
    if (result)
        memcpy(result, &addr, sizeof addr);
}

static void free_memory(uint64_t addr)
{
    if (addr)
        memory_remove(addr);
    free((void *)(uintptr_t)addr);
}

void run_call(struct thread *t, const struct ins *i)
{
    const struct ptx_call *call = i->call;
    const struct ptx_function *f = call->function;
    if (call->indirect)
        f = function_at(t, t->r[call->slot]);
    if (f && f->n_code) {
        enter(t, f, call);
    } else if (call->builtin == BUILTIN_VPRINTF) {
        print(t, argument(t, call, 0), argument(t, call, 1));
    } else if (call->builtin == BUILTIN_ASSERTFAIL) {
        fail_assert(t, call);
    } else if (call->builtin == BUILTIN_MALLOC) {
        make_memory(t, call);
    } else if (call->builtin == BUILTIN_FREE) {
        free_memory(argument(t, call, 0));
    } else {
        fault(t, DRV_ERROR_ILLEGAL_ADDRESS);
    }
}
