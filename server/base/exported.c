#include "base/exported.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/dtype.h"
#include "base/report.h"

enum { MAX_ARGS = 1 << 16 };

static const size_t element_sizes[EXPORTED_N_SECTIONS] = {
    [EXPORTED_OPERANDS] = sizeof(struct exported_operand),
    [EXPORTED_STEPS] = sizeof(struct exported_step),
    [EXPORTED_SLOTS] = sizeof(struct exported_slot),
    [EXPORTED_MATMULS] = sizeof(struct exported_matmul),
    [EXPORTED_KERNELS] = sizeof(struct exported_kernel),
    [EXPORTED_ARGS] = 1,
    [EXPORTED_TEXTS] = 1,
    [EXPORTED_CHECKS] = 1,
    [EXPORTED_PAYLOADS] = 1,
};

size_t exported_element_size(enum exported_section section)
{
    return element_sizes[section];
}

static bool refuse(struct opd_err *err, const char *what, uint64_t which)
{
    return opd_err_set(err, OPD_E_malformed_message, "exported plan: %s %llu", what,
                       (unsigned long long)which);
}

static uint64_t count(const struct exported *x, enum exported_section section)
{
    return x->head->sections[section].n;
}

static bool is_inside(uint64_t at, uint64_t size, uint64_t end)
{
    return at <= end && size <= end - at;
}

static bool is_text(const struct exported *x, uint32_t at)
{
    return at < count(x, EXPORTED_TEXTS); // the last byte of all is a terminator
}

static bool ends_text(const char *texts, uint64_t size)
{
    return size == 0 || texts[size - 1] == '\0';
}

static bool check_head(const struct exported_header *h, size_t size, struct opd_err *err)
{
    if (size < sizeof *h || memcmp(h->magic, "opdplan", 8) != 0)
        return refuse(err, "no plan in so many bytes:", size);
    if (h->layout != EXPORTED_LAYOUT)
        return opd_err_set(err, OPD_E_malformed_message,
                           "exported plan: its layout is %u, this client reads %d; update the "
                           "older one of daemon and client",
                           h->layout, EXPORTED_LAYOUT);
    if (h->size != size || (h->device != EXPORTED_CPU && h->device != EXPORTED_CUDA) ||
        h->direction > EXPORTED_BACKWARD)
        return refuse(err, "its header does not fit so many bytes:", size);
    for (unsigned i = 0; i < EXPORTED_N_SECTIONS; i++) {
        uint64_t n = h->sections[i].n, offset = h->sections[i].offset;
        uint64_t most = element_sizes[i] > 1 ? UINT32_MAX : (uint64_t)1 << 40;
        if (offset % EXPORTED_ALIGNED || n > most || !is_inside(offset, n * element_sizes[i], size))
            return refuse(err, "it has no room for its section", i);
    }
    return true;
}

static const void *section(const struct exported *x, enum exported_section s)
{
    return (const uint8_t *)x->head + x->head->sections[s].offset;
}

// False where the bytes do not fit into 64 bits.
static bool find_size(const struct exported_operand *o, uint64_t *out)
{
    uint64_t each = dtype_size(dtype_from_number(o->dtype)), size = each, dim;
    bool fits = true;
    for (uint32_t i = 0; i < o->rank; i++) {
        if (o->shape[i] == 0) {
            *out = 0;
            return true;
        }
        fits = fits && o->shape[i] > 0 && o->strides[i] >= 0 &&
               !__builtin_mul_overflow((uint64_t)o->shape[i] - 1, (uint64_t)o->strides[i], &dim) &&
               !__builtin_mul_overflow(dim, each, &dim) &&
               !__builtin_add_overflow(size, dim, &size);
    }
    *out = size;
    return fits;
}

static bool check_operand(const struct exported *x, const struct exported_operand *o)
{
    uint64_t size;
    return o->kind <= EXPORTED_GRAD_INPUT && o->rank <= EXPORTED_MAX_RANK && o->view_of >= -1 &&
           o->view_of < EXPORTED_MAX_INDEX && exported_index(o) < EXPORTED_MAX_INDEX &&
           exported_member(o) < EXPORTED_MAX_MEMBERS &&
           is_text(x, o->name) && dtype_from_number(o->dtype) != OPD_DTYPE_NONE &&
           find_size(o, &size) && size == o->size;
}

static bool check_matrix(const struct exported *x, const struct exported_matrix *m, int64_t rows,
                         int64_t cols, uint32_t dtype)
{
    int64_t high = m->transposed ? cols : rows, wide = m->transposed ? rows : cols;
    if (m->operand >= x->n_operands || m->stride < wide || m->stride > INT32_MAX)
        return false;
    uint64_t n = (uint64_t)(high - 1) * (uint64_t)m->stride + (uint64_t)wide; // below 2^63
    uint64_t size = dtype_size(dtype_from_number(dtype));
    return x->operands[m->operand].dtype == dtype && m->offset % size == 0 &&
           n < UINT64_MAX / size && m->size == n * size &&
           is_inside(m->offset, m->size, x->operands[m->operand].size);
}

static bool fits_int(int64_t n)
{
    return n > 0 && n <= INT32_MAX;
}

static bool check_matmul(const struct exported *x, const struct exported_matmul *m)
{
    return dtype_is_float(dtype_from_number(m->dtype)) &&
           dtype_is_float(dtype_from_number(m->result)) && fits_int(m->m) && fits_int(m->n) &&
           fits_int(m->k) && !m->d.transposed && check_matrix(x, &m->d, m->m, m->n, m->result) &&
           check_matrix(x, &m->a, m->m, m->k, m->dtype) &&
           check_matrix(x, &m->b, m->k, m->n, m->dtype);
}

static bool check_launch(const struct exported *x, const struct exported_step *s)
{
    for (int i = 0; i < 3; i++)
        if (s->grid[i] == 0 || s->block[i] == 0)
            return false;
    if (s->kernel >= x->n_kernels || s->args % EXPORTED_ARGS_ALIGNED || s->args_size > MAX_ARGS ||
        !is_inside(s->args, s->args_size, count(x, EXPORTED_ARGS)) ||
        !is_inside(s->slots, s->n_slots, count(x, EXPORTED_SLOTS)))
        return false;
    for (uint32_t i = s->slots; i < s->slots + s->n_slots; i++)
        if (x->slots[i].operand >= x->n_operands || x->slots[i].arg_offset % 8 ||
            !is_inside(x->slots[i].arg_offset, 8, s->args_size))
            return false;
    return true;
}

static bool check_step(const struct exported *x, const struct exported_step *s)
{
    switch (s->kind) {
    case EXPORTED_LAUNCH:
        return check_launch(x, s);
    case EXPORTED_COPY:
        return check_launch(x, s) && s->operand < x->n_operands;
    case EXPORTED_ZERO:
        return s->operand < x->n_operands;
    case EXPORTED_MATMUL:
        return s->matmul < count(x, EXPORTED_MATMULS);
    default:
        return false;
    }
}

static bool check_kernel(const struct exported *x, const struct exported_kernel *k)
{
    return is_text(x, k->symbol) && is_text(x, k->name) &&
           is_inside(k->payload, k->payload_size, count(x, EXPORTED_PAYLOADS));
}

static bool check_parts(const struct exported *x, struct opd_err *err)
{
    const struct exported_header *h = x->head;
    if (!ends_text(x->texts, count(x, EXPORTED_TEXTS)) || !is_text(x, h->op) ||
        !is_text(x, h->target) ||
        !ends_text(section(x, EXPORTED_CHECKS), count(x, EXPORTED_CHECKS)))
        return refuse(err, "its texts do not end in so many bytes:", count(x, EXPORTED_TEXTS));
    for (uint32_t i = 0; i < x->n_operands; i++)
        if (!check_operand(x, &x->operands[i]))
            return refuse(err, "it makes no sense in operand", i);
    for (uint64_t i = 0; i < count(x, EXPORTED_MATMULS); i++)
        if (!check_matmul(x, &x->matmuls[i]))
            return refuse(err, "it makes no sense in matmul", i);
    for (uint32_t i = 0; i < x->n_kernels; i++)
        if (!check_kernel(x, &x->kernels[i]))
            return refuse(err, "it makes no sense in kernel", i);
    for (uint32_t i = 0; i < x->n_steps; i++)
        if (!check_step(x, &x->steps[i]))
            return refuse(err, "it makes no sense in step", i);
    return h->report == -1 ||
           (h->report >= 0 && (uint32_t)h->report < x->n_operands &&
            x->operands[h->report].size == sizeof(uint64_t)) ||
           refuse(err, "its report is no operand:", (uint32_t)h->report);
}

bool exported_read(struct exported *x, const void *bytes, size_t size, struct opd_err *err)
{
    *x = (struct exported){ .head = bytes };
    if (!check_head(x->head, size, err))
        return false;
    x->operands = section(x, EXPORTED_OPERANDS);
    x->steps = section(x, EXPORTED_STEPS);
    x->slots = section(x, EXPORTED_SLOTS);
    x->matmuls = section(x, EXPORTED_MATMULS);
    x->kernels = section(x, EXPORTED_KERNELS);
    x->args = section(x, EXPORTED_ARGS);
    x->texts = section(x, EXPORTED_TEXTS);
    x->payloads = section(x, EXPORTED_PAYLOADS);
    x->n_operands = (uint32_t)count(x, EXPORTED_OPERANDS);
    x->n_steps = (uint32_t)count(x, EXPORTED_STEPS);
    x->n_kernels = (uint32_t)count(x, EXPORTED_KERNELS);
    return check_parts(x, err);
}

bool exported_open(struct exported *x, int fd, struct opd_err *err)
{
    const int sealed = F_SEAL_WRITE | F_SEAL_SHRINK;
    struct stat st;
    *x = (struct exported){ 0 };
    if (fstat(fd, &st) < 0 || (fcntl(fd, F_GET_SEALS) & sealed) != sealed || st.st_size <= 0)
        return opd_err_set(err, OPD_E_malformed_message,
                           "exported plan: the descriptor is of no sealed memfd");
    void *mapping = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapping == MAP_FAILED)
        return opd_err_errno(err, OPD_E_out_of_memory, "exported plan");
    bool ok = exported_read(x, mapping, (size_t)st.st_size, err);
    x->mapping = mapping;
    x->mapping_size = (size_t)st.st_size;
    if (!ok)
        exported_close(x);
    return ok;
}

void exported_close(struct exported *x)
{
    if (x->mapping)
        munmap(x->mapping, x->mapping_size);
    *x = (struct exported){ 0 };
}

void exported_explain(const struct exported *x, uint64_t key, struct buf *out)
{
    report_explain(section(x, EXPORTED_CHECKS), count(x, EXPORTED_CHECKS), key, out);
}
