// opctl ops NAME --ptx, --sass: what its kernels compile to.

#include "opctl/command.h"
#include "opctl/text.h"

static void show_code(FILE *out, const msgpack_object *list)
{
    for (uint32_t i = 0; list->type == MSGPACK_OBJECT_ARRAY && i < list->via.array.size; i++) {
        const msgpack_object *kernel = &list->via.array.ptr[i];
        const msgpack_object *text = opd_map_get(kernel, "text");
        fprintf(out, "%s// ", i ? "\n" : "");
        text_print(out, text_field(kernel, "kernel").s, false);
        fprintf(out, ", %s, %s\n", text_field(kernel, "dtype").s, text_field(kernel, "target").s);
        if (text && text->type == MSGPACK_OBJECT_STR)
            text_print_bytes(out, text->via.str.ptr, text->via.str.size, true);
    }
}

static void pack_option(struct pack *params, const char *key, const char *value)
{
    if (!value)
        return;
    pack_str(params, key);
    pack_str(params, value);
}

int ops_show_code(struct session *session, const struct args *args)
{
    const char *dtype = args->options[OPTION_DTYPE], *target = args->options[OPTION_TARGET];
    struct pack params;
    pack_init(&params, 3);
    pack_str(&params, args->words[1]);
    pack_str(&params, args->options[OPTION_SASS] ? "sass" : "ptx");
    pack_map(&params, (size_t)(dtype != NULL) + (target != NULL));
    pack_option(&params, "dtype", dtype);
    pack_option(&params, "target", target);
    opd_set_timeout(session->client, COMMAND_PATIENCE);
    return session_ask(session, "op_code", &params, show_code);
}
