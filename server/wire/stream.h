#pragma once

// A Unix stream socket on the loop that carries file descriptors beside its bytes. libuv's own
// pipes pass only handles of streams; this reads with recvmsg() and keeps a queue of descriptors
// beside the queue of bytes, both bounded.
//
// Callbacks come from the loop. After stream_close() none comes but `closed`, once the loop has let
// go of the handle.

#include <stdbool.h>
#include <uv.h>

#include "base/fdpass.h"
#include "base/mem.h"

enum { STREAM_MAX_FDS = 32 };

// Goes with the byte that has this number, of all that are ever sent. Owned.
struct stream_out_fd {
    uint64_t at;
    int fd;
};

struct stream {
    uv_poll_t poll;
    int events; // that the loop tells of
    int fd;     // -1 once closed
    struct buf in;
    size_t in_start; // bytes before it were consumed
    int fds[STREAM_MAX_FDS];
    int n_fds;
    struct buf out;
    size_t out_start;
    uint64_t sent;                 // bytes, since it was started
    struct stream_out_fd *out_fds; // to be sent, in this order
    size_t n_out_fds, out_fds_capacity;
    bool blocked; // there is more to send than it took
    bool reading; // false: the peer is left waiting
    bool over;    // it sends no more, and may still read
    bool paused;  // nothing is read or sent
    bool closing;
    void *owner;
    void (*readable)(struct stream *s); // more bytes are in
    void (*drained)(struct stream *s);  // optional: all of `out` was sent
    void (*ended)(struct stream *s); // optional: the peer sends no more, but reads; else that fails
    void (*failed)(struct stream *s,
                   const char *why);  // the other side is gone, or broke a rule: close it
    void (*closed)(struct stream *s); // may free the memory
};

// Takes the socket over and makes it non-blocking. The callbacks and the owner are set by the
// caller before.
void stream_start(struct stream *s, uv_loop_t *loop, int fd);
void stream_close(struct stream *s);

void stream_discard(struct stream *s); // one that was never started: closes what it holds

const uint8_t *stream_bytes(const struct stream *s);
size_t stream_size(const struct stream *s);
void stream_consume(struct stream *s, size_t size); // the bytes are no longer there
int stream_take_fd(struct stream *s); // the oldest descriptor, now the caller's; -1: none

// Bytes are appended to s->out by the caller; this sends what goes, a megabyte at most, and
// arranges for the rest.
void stream_flush(struct stream *s);
// A large piece behind it, in a buffer that is taken over: its bytes from `start` on. What is
// unsent goes before them, into the same buffer, where there is room for it.
void stream_append(struct stream *s, struct buf *b, size_t start);
void stream_attach_fd(struct stream *s, int fd); // goes with what is appended next; taken over
size_t stream_unsent(const struct stream *s);
void stream_set_reading(struct stream *s, bool reading);
void stream_pause(struct stream *s, bool paused); // what is in it stays as it is
