// opctl restart DEVICE: another process for a device.

#include "opctl/command.h"
#include "opctl/text.h"

static void show_device(FILE *out, const msgpack_object *device)
{
    fprintf(out, "Device %s is %s, restarted %s.\n", text_field(device, "name").s,
            text_field(device, "state").s, text_field_count(device, "restarts", "time").s);
}

int cmd_restart(struct session *session, const struct args *args)
{
    struct pack params;
    pack_init(&params, 1);
    pack_str(&params, args->words[1]);
    return session_ask(session, "device_restart", &params, show_device);
}
