#include "compiler/job.h"

#include <string.h>

#include "base/mem.h"

void job_pack(struct buf *out, const struct job_header *header, const char *const *strings, int n)
{
    size_t start = out->size;
    struct job_header h = *header;
    buf_append(out, &h, sizeof h);
    for (int i = 0; i < n; i++) {
        uint32_t length = (uint32_t)strlen(strings[i]);
        buf_append(out, &length, sizeof length);
        buf_append(out, strings[i], length + 1);
    }
    h.size = (uint32_t)(out->size - start);
    memcpy(out->bytes + start, &h, sizeof h);
}

long job_unpack(const void *bytes, size_t size, int n_strings, struct job_frame *out)
{
    if (size < sizeof out->header)
        return 0;
    memcpy(&out->header, bytes, sizeof out->header);
    uint32_t total = out->header.size;
    if (total < sizeof out->header || total > JOB_MAX_FRAME)
        return -1;
    if (size < total)
        return 0;
    size_t at = sizeof out->header;
    const char *text = bytes;
    for (int i = 0; i < n_strings; i++) {
        uint32_t length;
        if (total - at < sizeof length + 1)
            return -1;
        memcpy(&length, text + at, sizeof length);
        at += sizeof length;
        if (length >= total - at || text[at + length] != '\0')
            return -1;
        out->strings[i] = text + at;
        at += length + 1;
    }
    return at == total ? (long)total : -1;
}
