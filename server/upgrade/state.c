#include "upgrade/state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "request/parts.h"
#include "base/hash.h"
#include "base/mpscan.h"
#include "kernels/registry.h"
#include "memory/tensor.h"
#include "base/version.h"

struct state_header {
    char magic[8]; // "opdstate"
    uint32_t format;
    uint32_t reserved;
    uint64_t size; // of what follows
    uint64_t hash; // of the same
};

static const char magic[8] = { 'o', 'p', 'd', 's', 't', 'a', 't', 'e' };

static bool read_end(struct state_in *in)
{
    const struct broker *b = in->broker;
    in->over = true;
    return (b->options.n_kernels > 0 && b->reload.common && b->devices.n > 0) ||
           state_fail(in, "there is no broker, common header or device before it");
}

static bool read_text(struct state_in *in);

// Every record, in the order in which they are written.
static const struct record {
    const char *name;
    state_read_fn *read;
} records[] = {
    { "broker", state_read_broker },
    { "count", state_read_count },
    { "event", state_read_event },
    { "text", read_text }, // before the first that refers to it
    { "entry", state_read_version },
    { "family", state_read_operator },
    { "common", state_read_common },
    { "source", state_read_source },
    { "device", state_read_device },
    { "region", state_read_region },
    { "holder", state_read_holder },
    { "import", state_read_import },
    { "storage", state_read_storage },
    { "write", state_read_write }, // to the last storage
    { "tensor", state_read_tensor },
    { "conn", state_read_conn },
    { "conn_fd", state_read_conn_fd },
    { "conn_bytes", state_read_conn_bytes },
    { "conn_out_fd", state_read_conn_out_fd },
    { "id", state_read_id },
    { "shm", state_read_shm },
    { "export", state_read_export },
    { "conn_import", state_read_conn_import },
    { "told", state_read_told },
    { "context", state_read_context },
    { "reply", state_read_reply },
    { "now", state_read_now },
    { "child", state_read_child },
    { "end", read_end },
};

// --- writing

void state_begin(struct state_out *out, const char *record, size_t n_fields)
{
    pack_array(&out->bytes, 3);
    pack_uint(&out->bytes, 2);
    pack_str(&out->bytes, record);
    pack_array(&out->bytes, 1);
    pack_map(&out->bytes, n_fields);
}

void state_put_bytes(struct state_out *out, const char *key, const void *bytes, size_t size)
{
    pack_str(&out->bytes, key);
    pack_bin(&out->bytes, bytes ? bytes : "", size);
}

void state_put_str(struct state_out *out, const char *key, const char *s)
{
    if (s)
        state_put_bytes(out, key, s, strlen(s));
    else
        pack_key_str(&out->bytes, key, NULL);
}

void state_put_hash(struct state_out *out, const char *key, uint64_t hash)
{
    pack_key_int(&out->bytes, key, (int64_t)hash);
}

void state_put_fd(struct state_out *out, const char *key, int fd)
{
    pack_key_int(&out->bytes, key, fd);
    if (fd < 0)
        return;
    if (out->n_fds % 64 == 0)
        out->fds = mem_realloc(out->fds, (size_t)out->n_fds + 64, sizeof *out->fds);
    out->fds[out->n_fds++] = fd;
}

uint64_t state_number(const struct state_numbers *numbers, const void *thing)
{
    return thing ? (uint64_t)(uintptr_t)map_get(&numbers->of, (uint64_t)(uintptr_t)thing) : 0;
}

bool state_add(struct state_numbers *numbers, const void *thing)
{
    if (state_number(numbers, thing))
        return false;
    map_put(&numbers->of, (uint64_t)(uintptr_t)thing, (void *)(uintptr_t)++numbers->n);
    return true;
}

// Texts are large and most of them the same: each is written once.
struct state_text {
    struct state_text *next, *next_of_hash;
    const char *text; // borrowed
    uint64_t number;
};

uint64_t state_text(struct state_out *out, const char *text)
{
    if (!text)
        return 0;
    size_t size = strlen(text);
    uint64_t hash = hash_bytes(text, size, 0);
    struct state_text *first = map_get(&out->texts, hash);
    for (struct state_text *t = first; t; t = t->next_of_hash)
        if (strcmp(t->text, text) == 0)
            return t->number;
    struct state_text *t = mem_zalloc(1, sizeof *t);
    *t = (struct state_text){ out->all_texts, first, text, ++out->n_texts };
    out->all_texts = t;
    map_put(&out->texts, hash, t);
    state_begin(out, "text", 1);
    state_put_bytes(out, "text", text, size);
    return t->number;
}

void state_write(struct state_out *out, struct broker *b, const struct request *asked,
                 uint64_t held_since)
{
    struct state_header h = { .format = STATE_FORMAT };
    memcpy(h.magic, magic, sizeof magic);
    buf_append(&out->bytes, &h, sizeof h);
    state_write_broker(out, b, held_since);
    state_write_registry(out, b);
    state_write_memory(out, b);
    state_write_conns(out, b, asked);
    out->settled_size = out->bytes.size;
    state_write_now(out, b);
    state_write_children(out, b);
    state_begin(out, "end", 0);
    h.size = out->bytes.size - sizeof h;
    h.hash = hash_bytes(out->bytes.bytes + sizeof h, h.size, 0);
    memcpy(out->bytes.bytes, &h, sizeof h);
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
    map_finish(&out->versions.of);
    map_finish(&out->holders.of);
    map_finish(&out->imports.of);
    map_finish(&out->storages.of);
    map_finish(&out->tensors.of);
    map_finish(&out->texts);
    for (struct state_text *t = out->all_texts, *next; t; t = next) {
        next = t->next;
        free(t);
    }
    free(out->fds);
    *out = (struct state_out){ 0 };
}

// --- fields

bool state_fail(struct state_in *in, const char *what)
{
    if (!in->err->code)
        opd_err_set(in->err, OPD_E_malformed_message, "the state's record '%s': %s", in->record,
                    what);
    return false;
}

bool state_good(const struct state_in *in)
{
    return !in->err->code;
}

const value *state_get(struct state_in *in, const char *key)
{
    return value_get(in->fields, key);
}

static void fail_field(struct state_in *in, const char *key)
{
    char what[128];
    snprintf(what, sizeof what, "the field '%s' is absent or wrong", key);
    state_fail(in, what);
}

int64_t state_int_of(struct state_in *in, const value *v, int64_t least, int64_t most)
{
    if (v && value_type(v) == VALUE_INT && value_int(v) >= least && value_int(v) <= most)
        return value_int(v);
    state_fail(in, "a number is absent, or out of its range");
    return least;
}

int64_t state_int(struct state_in *in, const char *key, int64_t least, int64_t most)
{
    const value *v = state_get(in, key);
    if (v && value_type(v) == VALUE_INT && value_int(v) >= least && value_int(v) <= most)
        return value_int(v);
    fail_field(in, key);
    return least;
}

uint64_t state_uint(struct state_in *in, const char *key)
{
    return (uint64_t)state_int(in, key, 0, INT64_MAX);
}

uint64_t state_hash(struct state_in *in, const char *key)
{
    return (uint64_t)state_int(in, key, INT64_MIN, INT64_MAX);
}

bool state_bool(struct state_in *in, const char *key)
{
    const value *v = state_get(in, key);
    if (v && value_type(v) == VALUE_BOOL)
        return value_bool(v);
    fail_field(in, key);
    return false;
}

double state_float(struct state_in *in, const char *key)
{
    const value *v = state_get(in, key);
    if (v && value_type(v) == VALUE_FLOAT)
        return value_float(v);
    fail_field(in, key);
    return 0;
}

const void *state_bytes(struct state_in *in, const char *key, size_t *out_size)
{
    const value *v = state_get(in, key);
    *out_size = 0;
    if (v && value_type(v) == VALUE_BIN)
        return value_bytes(v, out_size);
    fail_field(in, key);
    return "";
}

char *state_str(struct state_in *in, const char *key)
{
    const value *v = state_get(in, key);
    if (v && value_type(v) == VALUE_NIL)
        return NULL;
    size_t size;
    const char *bytes = state_bytes(in, key, &size);
    if (memchr(bytes, '\0', size))
        fail_field(in, key);
    return state_good(in) ? mem_strndup(bytes, size) : NULL;
}

void state_copy_str(struct state_in *in, const char *key, char *out, size_t size)
{
    size_t length;
    const char *bytes = state_bytes(in, key, &length);
    out[0] = '\0';
    if (length >= size || memchr(bytes, '\0', length)) {
        fail_field(in, key);
        return;
    }
    memcpy(out, bytes, length);
    out[length] = '\0';
}

int state_fd(struct state_in *in, const char *key)
{
    int fd = (int)state_int(in, key, -1, INT32_MAX);
    if (in->check || fd < 0)
        return -1;
    // Nothing that this process starts shall inherit it.
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
        state_fail(in, "a descriptor is not open");
        return -1;
    }
    return fd;
}

void state_keep(struct state_table *table, void *thing)
{
    if (table->n == 0 || (table->n >= 64 && (table->n & (table->n - 1)) == 0))
        table->items = mem_realloc(table->items, table->n ? table->n * 2 : 64,
                                   sizeof *table->items);
    table->items[table->n++] = thing;
}

void *state_thing_of(struct state_in *in, const value *v, const struct state_table *table)
{
    int64_t number = state_int_of(in, v, 0, (int64_t)table->n);
    return number ? table->items[number - 1] : NULL;
}

void *state_thing(struct state_in *in, const char *key, const struct state_table *table)
{
    int64_t number = state_int(in, key, 0, (int64_t)table->n);
    return number ? table->items[number - 1] : NULL;
}

const char *state_text_of(struct state_in *in, const char *key)
{
    return state_thing(in, key, &in->texts);
}

static bool read_text(struct state_in *in)
{
    char *text = state_str(in, "text");
    if (text)
        state_keep(&in->texts, text);
    return text || state_fail(in, "there is no text");
}

// --- reading

static bool read_record(struct state_in *in, const struct msg *msg)
{
    const value *fields = value_at(msg->params, 0);
    in->record = "?";
    if (!msg->notification || !fields || value_type(fields) != VALUE_MAP)
        return state_fail(in, "it is no notification with a map");
    for (size_t i = 0; i < sizeof records / sizeof records[0]; i++) {
        if (strlen(records[i].name) != msg->method_size ||
            memcmp(records[i].name, msg->method, msg->method_size) != 0)
            continue;
        in->record = records[i].name;
        in->fields = fields;
        return records[i].read(in) && state_good(in);
    }
    return state_fail(in, "no record of that name is known");
}

static bool read_records(struct state_in *in, const uint8_t *bytes, size_t size)
{
    while (!in->over) {
        struct mpscan scan = { 0 };
        if (size == 0 || mpscan_scan(&scan, bytes, size, NULL) != MPSCAN_DONE) {
            in->record = "?";
            return state_fail(in, "it is cut off, or no MessagePack");
        }
        struct msg msg;
        bool ok = msg_decode(&msg, bytes, scan.position, in->err) && read_record(in, &msg);
        msg_finish(&msg);
        if (!ok)
            return false;
        bytes += scan.position;
        size -= scan.position;
    }
    return size == 0 || state_fail(in, "more follows it");
}

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

static void let_go(struct state_in *in)
{
    for (size_t i = 0; i < in->texts.n; i++)
        free(in->texts.items[i]);
    for (size_t i = 0; i < in->tensors.n; i++)
        tensor_unref(in->tensors.items[i]);
    for (size_t i = 0; i < in->storages.n; i++)
        storage_unref(in->storages.items[i]);
    for (size_t i = 0; i < in->imports.n; i++)
        import_unref(in->imports.items[i]);
    for (size_t i = 0; i < in->holders.n; i++)
        holder_unref(in->holders.items[i]);
    for (size_t i = 0; i < in->versions.n; i++)
        version_unref(in->versions.items[i]);
    free(in->texts.items);
    free(in->tensors.items);
    free(in->storages.items);
    free(in->imports.items);
    free(in->holders.items);
    free(in->versions.items);
}

bool state_read(struct broker *b, const void *bytes, size_t size, bool check, struct opd_err *err)
{
    struct state_in in = { .broker = b, .check = check, .record = "?", .err = err };
    size_t start = sizeof(struct state_header);
    bool ok = check_header(bytes, size, err) &&
              read_records(&in, (const uint8_t *)bytes + start, size - start);
    let_go(&in);
    return ok;
}

uint8_t *state_load(int fd, size_t *out_size, struct opd_err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        opd_err_set(err, OPD_E_invalid_argument, "descriptor %d holds no state", fd);
        return NULL;
    }
    size_t size = (size_t)st.st_size, got = 0;
    uint8_t *bytes = mem_alloc(size ? size : 1);
    for (ssize_t n = 1; n > 0 && got<size; got += n> 0 ? (size_t)n : 0)
        n = pread(fd, bytes + got, size - got, (off_t)got);
    *out_size = got;
    return bytes;
}
