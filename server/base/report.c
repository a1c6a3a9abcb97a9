#include "base/report.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

// The key that opd::check() in opd.cuh makes: the check's place, so that the first one of the file
// has the greatest key, above the distance of the index from its upper limit.
enum { INDEX_BITS = 58, FIRST_PLACE = 63 };

static const int64_t index_limit = (int64_t)1 << (INDEX_BITS - 1);

void report_explain(const char *texts, size_t size, uint64_t key, struct buf *out)
{
    const char *end = texts + size;
    int place = FIRST_PLACE - (int)(key >> INDEX_BITS);
    int64_t distance = (int64_t)(key & (((uint64_t)1 << INDEX_BITS) - 1));
    char index[32];
    snprintf(index, sizeof index, "%lld", (long long)(index_limit - distance));
    while (place-- > 0 && texts < end)
        texts += strlen(texts) + 1;
    if (place >= 0 || texts >= end) {
        buf_append_str(out, "a check of a kernel failed whose number is none of the header's");
        return;
    }
    for (; *texts; texts++) {
        if (*texts == REPORT_INDEX_MARK)
            buf_append_str(out, index);
        else
            buf_append(out, texts, 1);
    }
}
