// opctl faults, opctl replay: what has faulted, kept in the cache's folder. The daemon is asked
// where that is; where none runs it is the default.

#include <string.h>

#include "opctl/alone.h"
#include "opctl/command.h"

int cmd_faults(struct session *session, const struct args *args)
{
    char cache[4096] = "";
    struct opd_reply reply = { 0 };
    struct opd_error err = { 0 };
    if (session->client && opd_call(session->client, "status", NULL, &reply, &err)) {
        const msgpack_object *path = opd_map_get(&reply.result, "cache");
        if (path && path->type == MSGPACK_OBJECT_STR && path->via.str.size < sizeof cache)
            memcpy(cache, path->via.str.ptr, path->via.str.size);
    }
    opd_reply_clear(&reply);
    opd_error_clear(&err);
    opd_close(session->client);
    session->client = NULL;
    return alone_faults(args, cache);
}
