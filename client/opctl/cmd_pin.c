// opctl pin OP VERSION: that version, whatever is edited; opctl pin OP latest: the newest again.

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "opctl/command.h"
#include "opctl/text.h"

static void show_version(FILE *out, const msgpack_object *result)
{
    const msgpack_object *pinned = opd_map_get(result, "pinned");
    bool stays = pinned && pinned->type == MSGPACK_OBJECT_BOOLEAN && pinned->via.boolean;
    fprintf(out, "Version %s is served, %s.\n", text_field(result, "version").s,
            stays ? "whatever is edited" : "and every edit from here on");
}

static bool pack_version(struct pack *params, const char *word)
{
    char *end;
    errno = 0;
    long long version = strtoll(word, &end, 10);
    if (strcmp(word, "latest") == 0)
        pack_nil(params);
    else if (word[0] >= '0' && word[0] <= '9' && *end == '\0' && errno == 0 && version > 0)
        pack_int(params, version);
    else
        return false;
    return true;
}

int cmd_pin(struct session *session, const struct args *args)
{
    struct pack params;
    pack_init(&params, 2);
    pack_str(&params, args->words[1]);
    if (pack_version(&params, args->words[2]))
        return session_ask(session, "pin", &params, show_version);
    pack_finish(&params);
    return session_refuse("'%s' is no version: expected a number above 0, or 'latest'",
                          args->words[2]);
}
