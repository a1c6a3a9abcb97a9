#include "c/inbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "c/error.h"

enum {
    ROOM = 64 << 10, // for one call of recv
    KEPT = 1 << 20,  // capacity that an empty inbox keeps
};

void inbox_finish(struct inbox *in)
{
    free(in->bytes);
    *in = (struct inbox){ 0 };
}

static bool make_room(struct inbox *in)
{
    if (in->capacity - in->end >= ROOM)
        return true;
    if (in->begin > 0) {
        memmove(in->bytes, in->bytes + in->begin, in->end - in->begin);
        in->end -= in->begin;
        in->begin = 0;
    }
    if (in->capacity - in->end >= ROOM)
        return true;
    size_t capacity = in->capacity * 2 + ROOM;
    char *bytes = realloc(in->bytes, capacity);
    if (!bytes)
        return false;
    in->bytes = bytes;
    in->capacity = capacity;
    return true;
}

bool inbox_receive(struct inbox *in, int fd, struct opd_error *err)
{
    if (!make_room(in))
        return error_set(err, OPD_CONNECTION_LOST, "no host memory for a reply");
    ssize_t n = recv(fd, in->bytes + in->end, in->capacity - in->end, MSG_DONTWAIT);
    if (n == 0)
        return error_set(err, OPD_CONNECTION_LOST, "the daemon has closed the connection");
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
        return error_set_errno(err, OPD_CONNECTION_LOST, "reading from the daemon");
    if (n > 0)
        in->end += (size_t)n;
    return true;
}

static void drop_front(struct inbox *in, size_t size)
{
    in->begin += size;
    in->scan = (struct mpscan){ 0 };
    if (in->begin < in->end)
        return;
    in->begin = in->end = 0;
    if (in->capacity > KEPT) {
        free(in->bytes);
        in->bytes = NULL;
        in->capacity = 0;
    }
}

enum mpscan_result inbox_take(struct inbox *in, char **bytes, size_t *size, struct opd_error *err)
{
    *bytes = NULL;
    if (in->begin == in->end)
        return MPSCAN_MORE;
    const char *from = in->bytes + in->begin;
    enum mpscan_result result = mpscan_scan(&in->scan, from, in->end - in->begin, NULL);
    if (result == MPSCAN_INVALID)
        error_set(err, OPD_MALFORMED_MESSAGE, "the peer does not speak opd's protocol: %s",
                  in->scan.reason);
    if (result != MPSCAN_DONE)
        return result;
    *size = in->scan.position;
    *bytes = malloc(*size);
    if (!*bytes) {
        error_set(err, OPD_CONNECTION_LOST, "no host memory for a reply of %zu bytes", *size);
        return MPSCAN_INVALID;
    }
    memcpy(*bytes, from, *size);
    drop_front(in, *size);
    return MPSCAN_DONE;
}
