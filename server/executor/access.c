#include "executor/access.h"

#include <stdio.h>

// The parameter that an offset among the arguments belongs to; NULL: none.
static const struct backend_param *find_param(const struct access_scene *scene, uint32_t offset)
{
    for (int i = 0; i < scene->n_params; i++)
        if (offset >= scene->params[i].offset &&
            offset - scene->params[i].offset < scene->params[i].size)
            return &scene->params[i];
    return NULL;
}

const struct backend_tensor *access_nearest(const struct access_scene *scene, device_addr addr,
                                            uint64_t within)
{
    const struct backend_tensor *best = NULL;
    uint64_t least = within + 1;
    for (int i = 0; i < scene->n_tensors; i++) {
        const struct backend_tensor *t = &scene->tensors[i];
        device_addr end = t->addr + t->size;
        uint64_t away = addr < t->addr ? t->addr - addr : addr >= end ? addr - end : 0;
        if (away < least) {
            least = away;
            best = t;
        }
    }
    return best;
}

void access_name(const struct access_scene *scene, uint32_t arg_offset, char *out, size_t size)
{
    const struct backend_param *p = find_param(scene, arg_offset);
    bool named = p && p->name[0];
    snprintf(out, size, "%s'%s'", named && !p->is_tensor ? "a tensor in " : "",
             named ? p->name : "a tensor");
}

long long access_element(const struct backend_tensor *t, device_addr addr)
{
    long long each = (long long)dtype_size((enum opd_dtype)t->dtype);
    long long away = (long long)(addr - t->addr);
    return each ? (away - (away < 0 ? each - 1 : 0)) / each : away;
}

void access_describe(const struct access_scene *scene, const char *verb, device_addr addr,
                     const struct backend_tensor *t, char *out, size_t size)
{
    char name[80];
    long long each = (long long)dtype_size((enum opd_dtype)t->dtype);
    access_name(scene, t->arg_offset, name, sizeof name);
    snprintf(out, size, "out-of-bounds %s of %s: element %lld of %lld (%s)", verb, name,
             access_element(t, addr), (long long)t->size / (each ? each : 1),
             dtype_name((enum opd_dtype)t->dtype));
}

// Null are the tensors that are absent, empty or not wanted.
void access_describe_null(const struct access_scene *scene, const char *verb, char *out,
                          size_t size)
{
    int n = 0, at = snprintf(out, size, "%s through a null pointer: ", verb);
    for (int i = 0; i < scene->n_params && at >= 0 && (size_t)at < size; i++) {
        const struct backend_param *p = &scene->params[i];
        bool given = !p->is_tensor;
        for (int t = 0; t < scene->n_tensors; t++)
            given = given || scene->tensors[t].arg_offset == p->offset;
        if (!given)
            at += snprintf(out + at, size - (size_t)at, "%s'%s'", n++ ? " or " : "", p->name);
    }
    if (at < 0 || (size_t)at >= size)
        return;
    snprintf(out + at, size - (size_t)at, "%s",
             n == 1  ? " is null here (absent, empty or not wanted): test it first"
             : n > 1 ? " (null here: absent, empty or not wanted); test them first"
                     : "no tensor of this launch is null, the kernel has made it itself");
}
