#include "wire/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

// KEEP: what an empty buffer may keep of its memory. MOVE: what may be moved at once to the front
// of one. SEND: what is sent before others get their turn.
enum {
    READ_SIZE = 256 << 10,
    IN_KEEP = 8 << 20,
    OUT_KEEP = 1 << 20,
    MOVE_MOST = 8 << 20,
    SEND_MOST = 1 << 20,
};

static void poll_cb(uv_poll_t *handle, int status, int events);

static void update_poll(struct stream *s)
{
    // Nothing is ever of priority; asked for that, the loop still tells of a peer that is gone.
    int events = s->over ? UV_PRIORITIZED : s->reading ? UV_READABLE : 0;
    if (s->blocked)
        events |= UV_WRITABLE;
    if (s->paused)
        events = 0;
    if (events == s->events)
        return; // libuv would take the socket out of the poll and put it in again
    s->events = events;
    if (events)
        uv_poll_start(&s->poll, events, poll_cb);
    else
        uv_poll_stop(&s->poll);
}

// False: there are more than the peer may leave here untaken, or than the process can hold.
static bool keep_fds(struct stream *s, const int *fds, int n)
{
    bool ok = true;
    for (int i = 0; i < n; i++) {
        ok = ok && s->n_fds < STREAM_MAX_FDS && fdpass_left(fds[i]) >= FDPASS_KEPT_BACK / 2;
        if (ok)
            s->fds[s->n_fds++] = fds[i];
        else
            close(fds[i]);
    }
    return ok;
}

// Drops the bytes before `start`, seldom enough that moving the rest costs little for each of them.
static void drop_used(struct buf *b, size_t *start, size_t keep)
{
    if (*start == b->size) {
        b->size = *start = 0;
        if (b->capacity > keep)
            buf_finish(b);
    } else if (*start > READ_SIZE && *start > b->size / 2 && b->size - *start <= MOVE_MOST) {
        buf_consume(b, *start);
        *start = 0;
    }
}

// The peer reads no more either.
static bool is_gone(const struct stream *s)
{
    struct pollfd p = { .fd = s->fd };
    return poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR));
}

static void read_more(struct stream *s)
{
    buf_reserve(&s->in, READ_SIZE);
    int fds[FDPASS_MAX];
    int n_fds;
    ssize_t n = fdpass_recv(s->fd, s->in.bytes + s->in.size, READ_SIZE, fds, &n_fds);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return;
    if (n == 0 && s->ended && !is_gone(s)) {
        s->over = true;
        s->ended(s);
        return;
    }
    if (n <= 0) {
        s->failed(s, n == 0 ? "closed by the other side" : strerror(errno));
        return;
    }
    if (!keep_fds(s, fds, n_fds)) {
        s->failed(s, "too many file descriptors that no message takes");
        return;
    }
    s->in.size += (size_t)n;
    s->readable(s);
}

static void drop_first_fd(struct stream *s)
{
    close(s->out_fds[0].fd);
    memmove(s->out_fds, s->out_fds + 1, --s->n_out_fds * sizeof *s->out_fds);
}

// Sends up to the byte that a descriptor goes with; or that byte, with it.
static ssize_t send_piece(struct stream *s)
{
    const uint8_t *bytes = s->out.bytes + s->out_start;
    size_t size = stream_unsent(s);
    bool first = s->n_out_fds > 0 && s->out_fds[0].at == s->sent;
    if (s->n_out_fds > (size_t)first) {
        uint64_t until = s->out_fds[first].at - s->sent;
        size = until < size ? (size_t)until : size;
    }
    ssize_t n = fdpass_send(s->fd, bytes, size, first ? &s->out_fds[0].fd : NULL, first);
    if (n > 0 && first)
        drop_first_fd(s);
    return n;
}

static void send_some(struct stream *s)
{
    uint64_t until = s->sent + SEND_MOST;
    s->blocked = true;
    while (stream_unsent(s) > 0) {
        if (s->sent >= until)
            return; // the loop comes back when there is room, which there is
        ssize_t n = send_piece(s);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n < 0) {
            s->failed(s, strerror(errno));
            return;
        }
        s->out_start += (size_t)n;
        s->sent += (uint64_t)n;
        drop_used(&s->out, &s->out_start, OUT_KEEP);
    }
    s->blocked = false;
    if (s->drained)
        s->drained(s);
}

static void poll_cb(uv_poll_t *handle, int status, int events)
{
    struct stream *s = handle->data;
    if (status < 0) {
        s->failed(s, uv_strerror(status));
        return;
    }
    if (events & UV_WRITABLE)
        send_some(s);
    if (!s->closing && (events & UV_PRIORITIZED) && is_gone(s))
        s->failed(s, "closed by the other side");
    if (!s->closing && (events & UV_READABLE) && s->reading && !s->over)
        read_more(s);
    if (!s->closing)
        update_poll(s);
}

void stream_start(struct stream *s, uv_loop_t *loop, int fd)
{
    s->fd = fd;
    s->reading = true;
    s->paused = false;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    uv_poll_init(loop, &s->poll, fd);
    s->poll.data = s;
    update_poll(s);
}

void stream_discard(struct stream *s)
{
    file_close(&s->fd);
    while (s->n_fds > 0)
        close(s->fds[--s->n_fds]);
    while (s->n_out_fds > 0)
        drop_first_fd(s);
    free(s->out_fds);
    buf_finish(&s->in);
    buf_finish(&s->out);
}

static void closed_cb(uv_handle_t *handle)
{
    struct stream *s = handle->data;
    stream_discard(s);
    s->closed(s);
}

void stream_close(struct stream *s)
{
    if (s->closing)
        return;
    s->closing = true;
    uv_poll_stop(&s->poll);
    uv_close((uv_handle_t *)&s->poll, closed_cb);
}

const uint8_t *stream_bytes(const struct stream *s)
{
    return s->in.bytes + s->in_start;
}

size_t stream_size(const struct stream *s)
{
    return s->in.size - s->in_start;
}

void stream_consume(struct stream *s, size_t size)
{
    s->in_start += size;
    drop_used(&s->in, &s->in_start, IN_KEEP);
}

int stream_take_fd(struct stream *s)
{
    if (s->n_fds == 0)
        return -1;
    int fd = s->fds[0];
    memmove(s->fds, s->fds + 1, (size_t)--s->n_fds * sizeof s->fds[0]);
    return fd;
}

void stream_flush(struct stream *s)
{
    if (s->closing || s->paused)
        return;
    send_some(s);
    if (!s->closing)
        update_poll(s);
}

void stream_append(struct stream *s, struct buf *b, size_t start)
{
    size_t unsent = stream_unsent(s);
    if (unsent <= start) {
        start -= unsent;
        if (unsent > 0)
            memcpy(b->bytes + start, s->out.bytes + s->out_start, unsent);
        buf_finish(&s->out);
        s->out = *b;
        s->out_start = start;
        *b = (struct buf){ 0 };
    } else {
        buf_append(&s->out, b->bytes + start, b->size - start);
        buf_finish(b);
    }
}

void stream_attach_fd(struct stream *s, int fd)
{
    if (s->n_out_fds == s->out_fds_capacity) {
        s->out_fds_capacity = s->out_fds_capacity ? 2 * s->out_fds_capacity : 8;
        s->out_fds = mem_realloc(s->out_fds, s->out_fds_capacity, sizeof *s->out_fds);
    }
    s->out_fds[s->n_out_fds++] = (struct stream_out_fd){ s->sent + stream_unsent(s), fd };
}

size_t stream_unsent(const struct stream *s)
{
    return s->out.size - s->out_start;
}

void stream_set_reading(struct stream *s, bool reading)
{
    if (s->closing || s->reading == reading)
        return;
    s->reading = reading;
    update_poll(s);
}

void stream_pause(struct stream *s, bool paused)
{
    s->paused = paused;
    if (!s->closing)
        update_poll(s);
}
