#include "compiler/rtc_checked.h"

#include <stdlib.h>

#include "base/checked.h"
#include "compiler/ptx_check.h"

bool rtc_is_checked(const struct compile_input *in)
{
    return strncmp(in->prelude, PLAN_CHECKED, strlen(PLAN_CHECKED)) == 0;
}

static size_t read_slots(const char *prelude, uint32_t *out)
{
    const char *at = prelude + strlen(PLAN_CHECKED);
    size_t n = 0;
    for (char *end; n <= CHECKED_MAX_SLOTS && *at == ' '; at = end)
        out[n++] = (uint32_t)strtoul(at, &end, 10);
    return n;
}

bool rtc_check(const struct compile_input *in, char *ptx, const char *symbol,
               struct compile_output *out, struct opd_err *err)
{
    uint32_t slots[CHECKED_MAX_SLOTS + 1];
    struct ptx_check_input input = { ptx, strlen(ptx), symbol, slots,
                                     read_slots(in->prelude, slots) };
    struct buf text = { 0 }, unchecked = { 0 };
    bool ok = ptx_check(&input, &text, &unchecked, err);
    free(ptx);
    if (!ok) {
        buf_finish(&text);
        buf_finish(&unchecked);
        return opd_err_prefix(err, "%s: kernel '%s'", in->file, in->expr);
    }
    if (unchecked.size > 0)
        out->log = buf_take(&unchecked);
    buf_finish(&unchecked);
    out->symbol = mem_strdup(symbol);
    out->size = text.size + 1;
    out->image = (uint8_t *)buf_take(&text);
    if (in->kind != COMPILE_PTX)
        return true;
    out->text = (char *)out->image;
    out->image = NULL;
    return true;
}
