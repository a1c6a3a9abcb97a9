#include "kernels/exports.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "base/exported.h"
#include "base/fdpass.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/image.h"
#include "base/mem.h"
#include "kernels/program.h"

static_assert((int)EXPORTED_INPUT == PLAN_INPUT && (int)EXPORTED_OUTPUT == PLAN_OUTPUT &&
                  (int)EXPORTED_SAVED == PLAN_SAVED && (int)EXPORTED_SCRATCH == PLAN_SCRATCH &&
                  (int)EXPORTED_GRAD_OUTPUT == PLAN_GRAD_OUTPUT &&
                  (int)EXPORTED_GRAD_INPUT == PLAN_GRAD_INPUT,
              "the same kinds of operands");
static_assert((int)EXPORTED_LAUNCH == PLAN_STEP_LAUNCH && (int)EXPORTED_ZERO == PLAN_STEP_ZERO &&
                  (int)EXPORTED_MATMUL == PLAN_STEP_MATMUL,
              "the same kinds of steps");
static_assert((int)EXPORTED_MAX_RANK == OP_MAX_RANK, "the same ranks");
static_assert((int)EXPORTED_MAX_INDEX >= PLAN_MAX_SCRATCH &&
                  (int)EXPORTED_MAX_INDEX >= OP_MAX_INPUTS,
              "room for every operand");
static_assert((int)EXPORTED_MEMBER == PLAN_MEMBER && (int)EXPORTED_MAX_MEMBERS == PLAN_MAX_MEMBERS,
              "the same lists");

struct writer {
    const struct plan *plan;
    struct buf sections[EXPORTED_N_SECTIONS];
};

static void align(struct buf *b, size_t to)
{
    static const uint8_t zeros[EXPORTED_ALIGNED];
    buf_append(b, zeros, (to - b->size % to) % to);
}

static uint32_t add_text(struct writer *w, const char *text)
{
    struct buf *texts = &w->sections[EXPORTED_TEXTS];
    uint32_t at = (uint32_t)texts->size;
    buf_append(texts, text, strlen(text) + 1);
    return at;
}

static void add_operands(struct writer *w)
{
    for (int i = 0; i < w->plan->n_operands; i++) {
        const struct plan_operand *o = &w->plan->operands[i];
        struct exported_operand out = {
            .kind = o->kind,
            .index = (uint32_t)o->index,
            .view_of = o->view_of,
            .dtype = o->desc.dtype,
            .rank = (uint32_t)o->desc.rank,
            .name = add_text(w, o->name),
            .size = tensor_desc_size(&o->desc),
        };
        for (int k = 0; k < o->desc.rank; k++) {
            out.shape[k] = o->desc.shape[k];
            out.strides[k] = tensor_desc_stride(&o->desc, k);
        }
        buf_append(&w->sections[EXPORTED_OPERANDS], &out, sizeof out);
    }
}

static struct exported_matrix matrix(const struct plan_matrix *m)
{
    return (struct exported_matrix){ .operand = m->operand,
                                     .transposed = m->transposed,
                                     .offset = m->offset,
                                     .size = m->size,
                                     .stride = m->stride };
}

static uint32_t add_matmul(struct writer *w, const struct plan_matmul *m)
{
    struct buf *matmuls = &w->sections[EXPORTED_MATMULS];
    struct exported_matmul out = { .dtype = m->dtype,
                                   .result = m->result,
                                   .accumulate = m->accumulate,
                                   .tf32 = m->tf32,
                                   .m = m->m,
                                   .n = m->n,
                                   .k = m->k,
                                   .d = matrix(&m->d),
                                   .a = matrix(&m->a),
                                   .b = matrix(&m->b) };
    buf_append(matmuls, &out, sizeof out);
    return (uint32_t)(matmuls->size / sizeof out) - 1;
}

static void add_launch(struct writer *w, const struct plan_step *step, struct exported_step *out)
{
    struct buf *args = &w->sections[EXPORTED_ARGS], *slots = &w->sections[EXPORTED_SLOTS];
    memcpy(out->grid, step->grid, sizeof out->grid);
    memcpy(out->block, step->block, sizeof out->block);
    out->kernel = step->kernel;
    out->shared_size = step->shared_size;
    align(args, EXPORTED_ARGS_ALIGNED);
    out->args = args->size;
    out->args_size = step->args_size;
    buf_append(args, step->args, step->args_size);
    out->slots = (uint32_t)(slots->size / sizeof(struct exported_slot));
    out->n_slots = (uint32_t)step->n_slots;
    for (int i = 0; i < step->n_slots; i++) {
        struct exported_slot slot = { step->slots[i].arg_offset, step->slots[i].operand };
        buf_append(slots, &slot, sizeof slot);
    }
}

static void add_steps(struct writer *w)
{
    for (int i = 0; i < w->plan->n_steps; i++) {
        const struct plan_step *step = &w->plan->steps[i];
        struct exported_step out = { .kind = step->kind };
        if (step->kind == PLAN_STEP_ZERO)
            out.operand = step->operand;
        else if (step->kind == PLAN_STEP_MATMUL)
            out.matmul = add_matmul(w, step->matmul);
        else
            add_launch(w, step, &out);
        if (step->copies) {
            out.kind = EXPORTED_COPY;
            out.operand = step->operand;
        }
        buf_append(&w->sections[EXPORTED_STEPS], &out, sizeof out);
    }
}

static bool add_kernels(struct writer *w, const struct bound_plan *bound, struct opd_err *err)
{
    struct buf *payloads = &w->sections[EXPORTED_PAYLOADS];
    for (int i = 0; i < w->plan->n_kernels; i++) {
        struct image image;
        if (!image_open(&image, bound->programs[i]->image_fd, err))
            return false;
        align(payloads, EXPORTED_ALIGNED);
        struct exported_kernel out = {
            .id = hash_bytes(image.payload, image.payload_size, 0),
            .payload = payloads->size,
            .payload_size = image.payload_size,
            .symbol = add_text(w, image.symbol),
            .name = add_text(w, w->plan->kernels[i].expr),
        };
        buf_append(payloads, image.payload, image.payload_size);
        buf_append(&w->sections[EXPORTED_KERNELS], &out, sizeof out);
        image_close(&image);
    }
    return true;
}

// The header, and where the sections go behind it.
static struct exported_header head(struct writer *w, const struct version *v,
                                   const struct device *d)
{
    struct exported_header h = {
        .magic = "opdplan",
        .layout = EXPORTED_LAYOUT,
        .device = d->is_cpu ? EXPORTED_CPU : EXPORTED_CUDA,
        .direction = w->plan->direction == PLAN_FORWARD ? EXPORTED_FORWARD : EXPORTED_BACKWARD,
        .version = v->mark,
        .op = add_text(w, w->plan->op->name),
        .target = add_text(w, d->info.target),
        .report = w->plan->report,
        .size = (sizeof h + EXPORTED_ALIGNED - 1) / EXPORTED_ALIGNED * EXPORTED_ALIGNED,
    };
    for (int i = 0; i < EXPORTED_N_SECTIONS; i++) {
        h.sections[i].offset = h.size;
        h.sections[i].n = w->sections[i].size / exported_element_size((enum exported_section)i);
        align(&w->sections[i], EXPORTED_ALIGNED);
        h.size += w->sections[i].size;
    }
    return h;
}

static int seal(const struct exported_header *h, const struct writer *w, struct opd_err *err)
{
    const int seals = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    struct buf first = { 0 };
    buf_append(&first, h, sizeof *h);
    align(&first, EXPORTED_ALIGNED);
    int fd = fdpass_claim(memfd_create("opd-plan", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    bool ok = fd >= 0 && file_put(fd, first.bytes, first.size);
    for (int i = 0; i < EXPORTED_N_SECTIONS && ok; i++)
        ok = file_put(fd, w->sections[i].bytes, w->sections[i].size);
    buf_finish(&first);
    if (ok && fcntl(fd, F_ADD_SEALS, seals) == 0)
        return fd;
    opd_err_errno(err, OPD_E_out_of_memory, "%s: no memory file for a plan of %llu bytes",
                  w->plan->op->name, (unsigned long long)h->size);
    file_close(&fd);
    return -1;
}

int exports_write(const struct version *v, const struct bound_plan *bound, struct opd_err *err)
{
    struct writer w = { .plan = bound->plan };
    int fd = -1;
    add_operands(&w);
    add_steps(&w);
    if (w.plan->checks_size > 0)
        buf_append(&w.sections[EXPORTED_CHECKS], w.plan->checks, w.plan->checks_size);
    if (add_kernels(&w, bound, err)) {
        struct exported_header h = head(&w, v, bound->device);
        fd = seal(&h, &w, err);
    }
    for (int i = 0; i < EXPORTED_N_SECTIONS; i++)
        buf_finish(&w.sections[i]);
    return fd;
}
