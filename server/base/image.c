#include "base/file.h"
#include "base/image.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "base/mem.h"

enum { IMAGE_VERSION = 1, IMAGE_MAX_SIZE = 1 << 30 };

struct image_header {
    char magic[8]; // "opdimage"
    uint32_t version;
    uint32_t symbol_size; // with its terminator, padded to 16
    uint64_t payload_size;
    uint64_t checksum; // of all that follows
};

void image_write(struct buf *out, const char *symbol, const void *payload, size_t size)
{
    struct image_header h = { .magic = "opdimag", .version = IMAGE_VERSION, .payload_size = size };
    size_t length = strlen(symbol) + 1;
    h.symbol_size = (uint32_t)((length + 15) & ~(size_t)15);
    size_t start = out->size;
    buf_append(out, &h, sizeof h);
    buf_append(out, symbol, length);
    static const char padding[16];
    buf_append(out, padding, h.symbol_size - length);
    buf_append(out, payload, size);
    h.checksum = hash_bytes(out->bytes + start + sizeof h, out->size - start - sizeof h, 0);
    memcpy(out->bytes + start, &h, sizeof h);
}

static bool check_image(struct image *image, struct opd_err *err)
{
    struct image_header h;
    if (image->mapping_size < sizeof h)
        return opd_err_set(err, OPD_E_internal, "image of %zu bytes is cut off",
                           image->mapping_size);
    memcpy(&h, image->mapping, sizeof h);
    size_t rest = image->mapping_size - sizeof h;
    const char *body = (const char *)image->mapping + sizeof h;
    if (memcmp(h.magic, "opdimag", 8) != 0 || h.version != IMAGE_VERSION)
        return opd_err_set(err, OPD_E_internal, "not an image of this version of opd");
    if (h.symbol_size == 0 || h.symbol_size > rest || h.payload_size != rest - h.symbol_size ||
        body[h.symbol_size - 1] != '\0' || h.checksum != hash_bytes(body, rest, 0))
        return opd_err_set(err, OPD_E_internal, "image is damaged");
    image->symbol = body;
    image->payload = body + h.symbol_size;
    image->payload_size = h.payload_size;
    return true;
}

bool image_open(struct image *image, int fd, struct opd_err *err)
{
    *image = (struct image){ 0 };
    struct stat st;
    if (fstat(fd, &st) < 0)
        return opd_err_errno(err, OPD_E_internal, "image");
    if (st.st_size < 0 || st.st_size > IMAGE_MAX_SIZE)
        return opd_err_set(err, OPD_E_internal, "image of %lld bytes", (long long)st.st_size);
    struct buf bytes = { 0 };
    file_get(fd, IMAGE_MAX_SIZE, &bytes);
    image->mapping = bytes.bytes;
    image->mapping_size = bytes.size;
    if (check_image(image, err))
        return true;
    image_close(image);
    return false;
}

void image_close(struct image *image)
{
    free(image->mapping);
    *image = (struct image){ 0 };
}
