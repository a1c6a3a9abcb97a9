#include "torch/image.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "torch/cpu.h"
#include "torch/cuda.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // held while one loads: it is wanted once
static struct image *images;

void image_lock(void)
{
    pthread_mutex_lock(&lock);
}

void image_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static struct image *find(uint64_t id, const char *symbol, int device_index)
{
    for (struct image *image = images; image; image = image->next)
        if (image->id == id && image->device_index == device_index &&
            strcmp(image->symbol, symbol) == 0)
            return image;
    return NULL;
}

static void free_image(struct image *image)
{
    if (image->device_index < 0)
        cpu_unload(image);
    else
        cuda_unload(image);
    free(image->symbol);
    free(image->name);
    free(image);
}

static struct image *load(const struct exported *x, const struct exported_kernel *k,
                          int device_index, struct opd_err *err)
{
    struct image *image = mem_zalloc(1, sizeof *image);
    const void *payload = x->payloads + k->payload;
    image->refs = 1;
    image->id = k->id;
    image->device_index = device_index;
    image->symbol = mem_strdup(x->texts + k->symbol);
    image->name = mem_strdup(x->texts + k->name);
    image->fd = -1;
    bool ok = device_index < 0 ? cpu_load(image, payload, k->payload_size, err)
                               : cuda_load(image, payload, err);
    if (!ok) {
        free_image(image);
        return NULL;
    }
    image->next = images;
    images = image;
    return image;
}

struct image *image_load(const struct exported *x, uint32_t i, int device_index,
                         struct opd_err *err)
{
    const struct exported_kernel *k = &x->kernels[i];
    image_lock();
    struct image *image = find(k->id, x->texts + k->symbol, device_index);
    if (image)
        image->refs++;
    else
        image = load(x, k, device_index, err);
    image_unlock();
    return image;
}

void image_unref(struct image *image)
{
    if (!image)
        return;
    image_lock();
    bool over = --image->refs == 0;
    if (over) {
        struct image **at = &images;
        while (*at != image)
            at = &(*at)->next;
        *at = image->next;
        free_image(image);
    }
    image_unlock();
}
