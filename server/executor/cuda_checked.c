#include "executor/cuda_checked.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/mem.h"
#include "executor/access.h"

enum { MAX_NAME = 128, MAX_FILE = 256 };

struct cuda_checked {
    char *sites; // the lines of CHECKED_SITE_FORMAT
    struct backend_param *params;
    int n_params;
    uint32_t slots[CHECKED_MAX_SLOTS];
    size_t n_slots;
    struct checked_row *rows;
    drv_addr table, report;
};

struct site {
    char does[16], what[16], name[MAX_NAME], file[MAX_FILE];
    unsigned width, element, line;
    long long number;
};

bool cuda_checked_is(const struct backend_image *image)
{
    size_t n = strlen(CHECKED_SLOTS);
    return image->size > n && memcmp(image->bytes, CHECKED_SLOTS, n) == 0;
}

// --- loading

// The newest version of PTX that a driver takes: 9.0 of CUDA 13.0, 8.5 of 12.6.
static void ptx_of_driver(int driver, int *major, int *minor)
{
    *major = driver / 1000 - 4;
    *minor = driver % 1000 / 10;
    if (*major == 8 && *minor >= 6)
        --*minor;
}

// NVRTC may be newer than the driver: what it writes says so, and needs nothing of that.
static void lower_version(char *text, int driver)
{
    char *at = strstr(text, "\n.version "), lowered[16];
    int major = 0, minor = 0, most_major, most_minor;
    if (!at || sscanf(at, "\n.version %d.%d", &major, &minor) != 2)
        return;
    ptx_of_driver(driver, &most_major, &most_minor);
    at += strlen("\n.version ");
    int n = snprintf(lowered, sizeof lowered, "%d.%d", most_major, most_minor);
    if (major * 100 + minor > most_major * 100 + most_minor && (size_t)n <= strcspn(at, "\n"))
        memcpy(at, lowered, (size_t)n);
}

static void read_slots(struct cuda_checked *c, const char *text)
{
    const char *at = text + strlen(CHECKED_SLOTS);
    for (char *end; c->n_slots < CHECKED_MAX_SLOTS && *at == ' '; at = end)
        c->slots[c->n_slots++] = (uint32_t)strtoul(at, &end, 10);
    c->rows = mem_zalloc(c->n_slots + 1, sizeof *c->rows);
}

static bool find_table(struct cuda_checked *c, const struct cuda_driver *cu, void *module,
                       struct opd_err *err)
{
    size_t table = 0, report = 0;
    return CU_OK(cuModuleGetGlobal(&c->table, &table, module, CHECKED_TABLE)) &&
           CU_OK(cuModuleGetGlobal(&c->report, &report, module, CHECKED_REPORT)) &&
           ((table >= c->n_slots * sizeof *c->rows && report == sizeof(struct checked_report)) ||
            opd_err_set(err, OPD_E_internal, "the table of a checked build has %zu bytes", table));
}

struct cuda_checked *cuda_checked_load(struct cuda_backend *b, const struct backend_image *image,
                                       void **out_module, struct opd_err *err)
{
    const struct cuda_driver *cu = b->cu;
    char *text = mem_strndup(image->bytes, image->size);
    const char *sites = strstr(text, "\n//@1 ");
    struct cuda_checked *c = mem_zalloc(1, sizeof *c);
    c->sites = mem_strdup(sites ? sites : "");
    c->n_params = image->n_params;
    c->params = mem_zalloc((size_t)image->n_params, sizeof *c->params);
    if (image->n_params)
        memcpy(c->params, image->params, (size_t)image->n_params * sizeof *c->params);
    read_slots(c, text);
    lower_version(text, b->info.driver_version);
    bool ok = CU_OK(cuModuleLoadData(out_module, text)) && find_table(c, cu, *out_module, err);
    free(text);
    if (ok)
        return c;
    cuda_checked_free(c);
    opd_err_prefix(err, "checked build");
    return NULL;
}

void cuda_checked_free(struct cuda_checked *c)
{
    if (!c)
        return;
    free(c->sites);
    free(c->params);
    free(c->rows);
    free(c);
}

// --- a launch

static const struct backend_tensor *tensor_at(const struct backend_launch *l, uint32_t arg_offset)
{
    for (int i = 0; i < l->n_tensors; i++)
        if (l->tensors[i].arg_offset == arg_offset)
            return &l->tensors[i];
    return NULL;
}

// What is absent has no offset that is good.
bool cuda_checked_begin(struct cuda_checked *c, struct cuda_backend *b,
                        const struct backend_launch *l, struct opd_err *err)
{
    const struct cuda_driver *cu = b->cu;
    for (size_t i = 0; i < c->n_slots; i++) {
        const struct backend_tensor *t = tensor_at(l, c->slots[i]);
        c->rows[i] = (struct checked_row){ .base = t ? t->addr : 0 };
        for (int w = 0; t && w < CHECKED_WIDTHS; w++)
            c->rows[i].limits[w] = t->size >= 1u << w ? t->size - (1u << w) + 1 : 0;
    }
    return (c->n_slots == 0 || CU_OK(cuMemcpyAsync(c->table, (drv_addr)(uintptr_t)c->rows,
                                                   c->n_slots * sizeof *c->rows, b->stream))) &&
           CU_OK(cuMemsetD8Async(c->report, 0, sizeof(struct checked_report), b->stream));
}

static bool find_site(const struct cuda_checked *c, uint32_t number, struct site *out)
{
    char head[32];
    unsigned again;
    snprintf(head, sizeof head, "\n//@%u ", number);
    const char *at = strstr(c->sites, head);
    return at && sscanf(at, "\n//@%u %15s %u %u %15s %lld %127s %u %255[^\n]", &again, out->does,
                        &out->width, &out->element, out->what, &out->number, out->name, &out->line,
                        out->file) == 9;
}

// The offset is inside only where it is misaligned. `size` is of the variable, in bytes.
static void describe_variable(const struct site *s, long long offset, long long size, char *out,
                              size_t room)
{
    long long each = s->element ? s->element : 1;
    const char *space = strcmp(s->what, "shared") == 0 ? "shared memory " : "";
    if (offset >= 0 && offset + s->width <= size)
        snprintf(out, room, "misaligned %s of %s'%s': %u bytes from byte %lld", s->does, space,
                 s->name, s->width, offset);
    else
        snprintf(out, room, "out-of-bounds %s of %s'%s': element %lld of %lld", s->does, space,
                 s->name, offset / each, size / each);
}

static void describe_tensor(const struct access_scene *scene, const struct site *s,
                            const struct backend_tensor *t, device_addr addr, char *out,
                            size_t size)
{
    char name[80];
    device_addr end = t->addr + t->size;
    access_name(scene, t->arg_offset, name, sizeof name);
    if (addr < t->addr || addr >= end)
        access_describe(scene, s->does, addr, t, out, size);
    else if (s->width && addr % s->width)
        snprintf(out, size, "misaligned %s of %s: %u bytes from element %lld", s->does, name,
                 s->width, access_element(t, addr));
    else // the first bytes are inside
        access_describe(scene, s->does, end, t, out, size);
}

// Of no tensor in particular.
static void describe_any(const struct access_scene *scene, const struct site *s, device_addr addr,
                         char *out, size_t size)
{
    const struct backend_tensor *t = access_nearest(scene, addr, UINT64_MAX - 1);
    char name[80];
    if (addr < CHECKED_NULL_ZONE) {
        access_describe_null(scene, s->does, out, size);
        return;
    }
    if (t && addr >= t->addr && addr < t->addr + t->size) {
        describe_tensor(scene, s, t, addr, out, size);
        return;
    }
    int n = snprintf(out, size, "out-of-bounds %s at address 0x%" PRIx64 ", which is in no tensor",
                     s->does, addr);
    if (!t || n < 0 || (size_t)n >= size)
        return;
    access_name(scene, t->arg_offset, name, sizeof name);
    bool before = addr < t->addr;
    snprintf(out + n, size - (size_t)n, " (%" PRIu64 " bytes %s %s)",
             before ? t->addr - addr : addr - t->addr - t->size, before ? "before" : "past", name);
}

static void describe(const struct cuda_checked *c, const struct backend_launch *l,
                     const struct site *s, const struct checked_report *r, char *out, size_t size)
{
    struct access_scene scene = { c->params, c->n_params, l->tensors, l->n_tensors };
    bool slot = strcmp(s->what, "slot") == 0 && s->number >= 0 && (size_t)s->number < c->n_slots;
    const struct backend_tensor *t = slot ? tensor_at(l, c->slots[s->number]) : NULL;
    char name[80];
    if (strcmp(s->does, "trap") == 0)
        snprintf(out, size, "__trap()");
    else if (strcmp(s->does, "assert") == 0)
        snprintf(out, size, "an assertion failed");
    else if (slot && t)
        describe_tensor(&scene, s, t, r->address, out, size);
    else if (slot) {
        access_name(&scene, c->slots[s->number], name, sizeof name);
        snprintf(out, size,
                 "%s through a null pointer: %s is null here (absent, empty or not wanted): test "
                 "it first",
                 s->does, name);
    } else if (strcmp(s->what, "any") == 0)
        describe_any(&scene, s, r->address, out, size);
    else
        describe_variable(s, (long long)r->address,
                          s->number < 0 ? (long long)l->shared_size : s->number, out, size);
}

static void note_miss(const struct cuda_checked *c, const struct backend_launch *l,
                      const struct site *s, const struct checked_report *r)
{
    bool slot = strcmp(s->what, "slot") == 0 && s->number >= 0 && (size_t)s->number < c->n_slots;
    const struct backend_tensor *t = slot ? tensor_at(l, c->slots[s->number]) : NULL;
    bool write = strcmp(s->does, "write") == 0;
    if (!l->miss)
        return;
    *l->miss = (struct backend_miss){ .what = BACKEND_MISS };
    if (t)
        *l->miss = (struct backend_miss){ .what = write ? BACKEND_MISS_WRITE : BACKEND_MISS_READ,
                                          .arg_offset = t->arg_offset,
                                          .offset = (int64_t)(r->address - t->addr) };
}

bool cuda_checked_end(struct cuda_checked *c, struct cuda_backend *b,
                      const struct backend_launch *l, struct opd_err *err)
{
    const struct cuda_driver *cu = b->cu;
    struct checked_report r = { 0 };
    struct site s = { 0 };
    char what[600];
    if (!CU_OK(cuMemcpyAsync((drv_addr)(uintptr_t)&r, c->report, sizeof r, b->stream)))
        return false;
    if (cu->cuStreamSynchronize(b->stream) != DRV_SUCCESS || r.n == 0)
        return true;
    bool known = find_site(c, r.site, &s);
    note_miss(c, l, &s, &r);
    if (!known)
        return opd_err_set(err, OPD_E_kernel_fault, "a checked access missed, at place %u", r.site);
    describe(c, l, &s, &r, what, sizeof what);
    return opd_err_set(err, OPD_E_kernel_fault, "%s, %s:%u", what, s.file, s.line);
}
