#include "request/parted.h"

#include "request/parts.h"

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

enum request_status parted_each(struct request *req, const value *ids,
                                const struct parted_ids *what, struct opd_err *err)
{
    size_t n = value_count(ids), end = least(2 * n, req->at + PARTED_IDS);
    for (; req->at < end; req->at++) {
        const value *id = value_at(ids, req->at % n);
        if (req->at >= n)
            what->act(req, id, what->data);
        else if (!what->check(req, id, req->at, what->data, err))
            return REQUEST_ERROR;
    }
    return end < 2 * n ? REQUEST_AGAIN : REQUEST_ANSWERED;
}

void parted_begin(struct request *req, uint64_t size)
{
    req->reply_start = CONN_MAX_UNSENT; // room for what goes before it
    buf_reserve(&req->reply, req->reply_start + size);
    req->reply.size = req->reply_start;
    pack_reply_ok(&req->reply, req->id);
}

void parted_send(struct request *req)
{
    stream_append(&req->conn->stream, &req->reply, req->reply_start);
    conn_touch(req->conn);
}

void parted_pack(struct request *kept)
{
    struct request **end = &kept->conn->packing;
    while (*end)
        end = &(*end)->next_packing;
    *end = kept;
    kept->at = 0;
    parted_begin(kept, kept->read_size + 64);
    pack_bin_head(&kept->reply, kept->read_size);
    conn_queue(kept->conn);
    turn_retry(&kept->broker->turn);
}

void parted_go_on(struct conn *c)
{
    struct request *req = c->packing;
    const uint8_t *bytes = req->device->staging.memory + staging_offset(req->staged);
    size_t n = least(PARTED_BYTES, req->read_size - req->at);
    buf_append(&req->reply, bytes + req->at, n);
    req->at += n;
    turn_retry(&c->broker->turn);
    if (req->at < req->read_size) {
        c->broker->counters.parts++;
        return;
    }
    c->packing = req->next_packing;
    parted_send(req);
    request_end(req);
}
