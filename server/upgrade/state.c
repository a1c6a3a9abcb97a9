#include "upgrade/state.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/version.h"
#include "request/graph.h"
#include "request/parts.h"
#include "kernels/registry.h"
#include "memory/tensor.h"
#include "upgrade/archive.h"

struct state_header {
    char magic[8]; // "opdstate"
    uint32_t format;
    uint32_t reserved;
    uint64_t size; // of what follows
    uint64_t hash; // of the same
};

static const char magic[8] = { 'o', 'p', 'd', 's', 't', 'a', 't', 'e' };

// --- writing

static void begin(struct archive *a)
{
    struct state_header h = { .format = STATE_FORMAT };
    memcpy(h.magic, magic, sizeof magic);
    buf_append(&a->bytes, &h, sizeof h);
}

static void end(struct archive *a)
{
    struct state_header h;
    memcpy(&h, a->bytes.bytes, sizeof h);
    h.size = a->bytes.size - sizeof h;
    h.hash = hash_bytes(a->bytes.bytes + sizeof h, h.size, 0);
    memcpy(a->bytes.bytes, &h, sizeof h);
}

void state_write_pins(struct buf *out, struct broker *b)
{
    struct opd_err unread = { 0 };
    struct archive a = { .broker = b, .err = &unread };
    begin(&a);
    size_t empty = a.bytes.size;
    for (size_t i = 0; i < b->registry.n_operators; i++)
        if (b->registry.operators[i]->pinned && b->registry.operators[i]->scope == SCOPE_FILES)
            archive_put(&a, RECORD_operator, b->registry.operators[i]);
    end(&a);
    if (a.bytes.size > empty)
        buf_append(out, a.bytes.bytes, a.bytes.size);
    buf_finish(&a.bytes);
    archive_finish(&a);
    opd_err_clear(&unread);
}

void state_write(struct state_out *out, struct broker *b, struct request *asked)
{
    struct opd_err unread = { 0 }; // who reads it judges
    struct archive a = { .broker = b, .err = &unread };
    begin(&a);
    state_write_broker(&a);
    state_write_registry(&a);
    state_write_memory(&a);
    state_write_graphs(&a);
    state_write_conns(&a);
    if (asked)
        archive_put(&a, RECORD_reply, asked);
    out->settled_size = a.bytes.size;
    archive_put(&a, RECORD_now, b);
    state_write_children(&a);
    archive_put(&a, RECORD_end, b);
    end(&a);
    out->bytes = a.bytes;
    out->fds = a.fds;
    for (int i = 0; i < b->devices.n; i++)
        out->unknown_memory += b->devices.at[i]->space.map.used;
    out->unknown_memory -= a.reached_size;
    archive_finish(&a);
    opd_err_clear(&unread);
}

bool state_is_same(const struct state_out *a, const struct state_out *b)
{
    size_t start = sizeof(struct state_header);
    return a->settled_size == b->settled_size &&
           memcmp(a->bytes.bytes + start, b->bytes.bytes + start, a->settled_size - start) == 0;
}

void state_out_finish(struct state_out *out)
{
    buf_finish(&out->bytes);
    buf_finish(&out->fds);
    *out = (struct state_out){ 0 };
}

// --- reading

static bool check_header(const void *bytes, size_t size, struct opd_err *err)
{
    struct state_header h;
    if (size < sizeof h)
        return opd_err_set(err, OPD_E_malformed_message, "the state of %zu bytes is cut off", size);
    memcpy(&h, bytes, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) != 0)
        return opd_err_set(err, OPD_E_malformed_message, "that is no state of an opd");
    if (h.format < STATE_OLDEST || h.format > STATE_FORMAT)
        return opd_err_set(err, OPD_E_unavailable,
                           "the running daemon writes its state in format %u, opd " OPD_VERSION
                           " reads %d to %d; restart the daemon instead",
                           h.format, STATE_OLDEST, STATE_FORMAT);
    const uint8_t *body = (const uint8_t *)bytes + sizeof h;
    if (h.size != size - sizeof h || h.hash != hash_bytes(body, h.size, 0))
        return opd_err_set(err, OPD_E_malformed_message, "the state is damaged");
    return true;
}

static void let_go(struct archive *a)
{
    const struct archive_table *t = a->tables;
    for (size_t i = 0; i < t[RECORD_text].n; i++)
        free(t[RECORD_text].items[i]);
    for (size_t i = 0; i < t[RECORD_graph].n; i++)
        graph_unref(t[RECORD_graph].items[i]);
    for (size_t i = 0; i < t[RECORD_tensor].n; i++)
        tensor_unref(t[RECORD_tensor].items[i]);
    for (size_t i = 0; i < t[RECORD_storage].n; i++)
        storage_unref(t[RECORD_storage].items[i]);
    for (size_t i = 0; i < t[RECORD_import].n; i++)
        import_unref(t[RECORD_import].items[i]);
    for (size_t i = 0; i < t[RECORD_holder].n; i++)
        holder_unref(t[RECORD_holder].items[i]);
    for (size_t i = 0; i < t[RECORD_version].n; i++)
        version_unref(t[RECORD_version].items[i]);
    archive_finish(a);
}

static bool read_archive(struct archive *a, const void *bytes, size_t size, struct opd_err *err)
{
    size_t start = sizeof(struct state_header);
    bool ok = check_header(bytes, size, err) &&
              archive_read(a, (const uint8_t *)bytes + start, size - start);
    let_go(a);
    return ok;
}

bool state_read(struct broker *b, const void *bytes, size_t size, bool check, struct opd_err *err)
{
    struct archive a = { .reading = true, .check = check, .broker = b, .record = "?", .err = err };
    return read_archive(&a, bytes, size, err);
}

bool state_read_pins(struct broker *b, const void *bytes, size_t size, struct opd_err *err)
{
    struct archive a = { .reading = true, .part = true, .broker = b, .record = "?", .err = err };
    return read_archive(&a, bytes, size, err);
}
