#pragma once

// Large requests, done in parts: what one client asks for holds up no other for more than
// milliseconds. A function that has done a part of its work returns REQUEST_AGAIN and is called
// again in the next turn of the loop, with the same request. A large result is packed in parts,
// too.

#include "request/request.h"

// What one turn of the loop does for a request.
enum {
    PARTED_DECODED = 1 << 16, // values of its message that are decoded
    PARTED_IDS = 1 << 12,     // looked up, or given up
    PARTED_TENSORS = 1 << 9,  // told of
    PARTED_BYTES = 1 << 20,   // copied
};

// For each id of a list: all of them are checked before the first is given to `act`, which may find
// that one is there no more (the same id twice). ERROR, AGAIN or ANSWERED; the result is the
// caller's.
struct parted_ids {
    bool (*check)(struct request *req, const value *id, size_t i, const void *data,
                  struct opd_err *err);
    void (*act)(struct request *req, const value *id, const void *data);
    const void *data;
};
enum request_status parted_each(struct request *req, const value *ids,
                                const struct parted_ids *what, struct opd_err *err);

// The result of the request, some `size` bytes, is packed behind this in req->reply, in as many
// parts as its function likes.
void parted_begin(struct request *req, uint64_t size);
// Sends what was packed so.
void parted_send(struct request *req);

// The bytes that the device has read (tensor_read) are packed in the turns that follow, one part of
// one request of a connection in each; request_end() comes then.
void parted_pack(struct request *kept);
void parted_go_on(struct conn *c);
