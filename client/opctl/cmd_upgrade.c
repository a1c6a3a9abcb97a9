// opctl upgrade [PROGRAM]: another opd takes the running one's place, and keeps what it holds.

#include <limits.h>
#include <unistd.h>

#include "opctl/command.h"
#include "opctl/text.h"

static void show_upgrade(FILE *out, const msgpack_object *result)
{
    fprintf(out, "opd %s serves as pid %s, after %s; nothing was begun for %s.\n",
            text_field(result, "version").s, text_field(result, "pid").s,
            text_field_seconds(result, "seconds").s, text_field_seconds(result, "held").s);
}

int cmd_upgrade(struct session *session, const struct args *args)
{
    struct pack params;
    char path[PATH_MAX], folder[PATH_MAX];
    const char *program = args->words[1];
    // A symbolic link stays one: the next upgrade goes where it then leads.
    if (program && (!getcwd(folder, sizeof folder) ||
                    snprintf(path, sizeof path, "%s%s%s", program[0] == '/' ? "" : folder,
                             program[0] == '/' ? "" : "/", program) >= (int)sizeof path))
        return session_refuse("%s: the path is too long", program);
    opd_set_timeout(session->client, COMMAND_PATIENCE);
    pack_init(&params, 1);
    pack_map(&params, program ? 1 : 0);
    if (program) {
        pack_str(&params, "path");
        pack_str(&params, path);
    }
    return session_ask(session, "upgrade", &params, show_upgrade);
}
