#include "request/printed.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "request/parts.h"
#include "request/request.h"

enum { MAX_LOGGED = 4 << 10 }; // bytes of a request: others want to read the log, too

static void log_lines(const char *who, const char *at, size_t size)
{
    const char *end = at + size, *most = size > MAX_LOGGED ? at + MAX_LOGGED : end;
    while (at < most) {
        const char *eol = memchr(at, '\n', (size_t)(most - at));
        eol = eol ? eol : most;
        log_info("%s prints: %.*s", who, (int)(eol - at), at);
        at = eol + 1;
    }
    if (most < end)
        log_info("%s prints: ... %td bytes more", who, end - most);
}

static bool notify(struct conn *conn, const char *op, const struct buf *text, uint64_t dropped)
{
    struct buf param = { 0 };
    size_t map = pack_map_begin(&param);
    pack_key_str(&param, "op", op);
    pack_str(&param, "text");
    pack_bin(&param, text->bytes, text->size);
    pack_key_uint(&param, "dropped", dropped);
    pack_map_end(&param, map);
    bool told = conn_notify(conn, "printed", &param);
    buf_finish(&param);
    return told;
}

void printed_tell(const struct request *req, const struct command *c)
{
    struct buf text = { 0 };
    uint64_t before = req->conn->n_unprinted, dropped = before + c->n_unprinted;
    if (before)
        buf_printf(&text, "... %" PRIu64 " bytes were dropped, since nobody read them\n", before);
    buf_append(&text, c->printed, c->n_printed);
    if (c->n_unprinted)
        buf_printf(&text, "%s... %" PRIu64 " bytes more were dropped\n",
                   c->printed[c->n_printed - 1] == '\n' ? "" : "\n", c->n_unprinted);
    log_lines(req->op[0] ? req->op : "a graph", buf_str(&text), text.size);
    if (req->conn->hears.printed && !req->conn->closed)
        req->conn->n_unprinted = notify(req->conn, req->op, &text, dropped)
                                     ? 0
                                     : dropped + c->n_printed;
    buf_finish(&text);
}
