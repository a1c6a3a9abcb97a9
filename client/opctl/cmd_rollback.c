// opctl rollback OP: the version before the one that is served.

#include "opctl/command.h"
#include "opctl/text.h"

static void show_version(FILE *out, const msgpack_object *result)
{
    fprintf(out, "Version %s is served, until its file is edited.\n",
            text_field(result, "version").s);
}

int cmd_rollback(struct session *session, const struct args *args)
{
    struct pack params;
    pack_init(&params, 1);
    pack_str(&params, args->words[1]);
    return session_ask(session, "rollback", &params, show_version);
}
