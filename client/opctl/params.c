#include "opctl/params.h"

#include <string.h>

void params_init(struct params *p, size_t count)
{
    msgpack_sbuffer_init(&p->bytes);
    msgpack_packer_init(&p->mp, &p->bytes, msgpack_sbuffer_write);
    msgpack_pack_array(&p->mp, count);
}

void params_finish(struct params *p)
{
    msgpack_sbuffer_destroy(&p->bytes);
}

void params_text(struct params *p, const char *text, size_t size)
{
    msgpack_pack_str(&p->mp, size);
    msgpack_pack_str_body(&p->mp, text, size);
}

void params_str(struct params *p, const char *text)
{
    params_text(p, text, strlen(text));
}

void params_int(struct params *p, int64_t value)
{
    msgpack_pack_int64(&p->mp, value);
}

void params_bool(struct params *p, bool value)
{
    if (value)
        msgpack_pack_true(&p->mp);
    else
        msgpack_pack_false(&p->mp);
}

void params_nil(struct params *p)
{
    msgpack_pack_nil(&p->mp);
}

void params_map(struct params *p, size_t count)
{
    msgpack_pack_map(&p->mp, count);
}

void params_list(struct params *p, const char *list)
{
    size_t count = 1;
    for (const char *c = list; *c; c++)
        count += *c == ',';
    msgpack_pack_array(&p->mp, count);
    for (;;) {
        size_t n = strcspn(list, ",");
        params_text(p, list, n);
        if (!list[n])
            return;
        list += n + 1;
    }
}
