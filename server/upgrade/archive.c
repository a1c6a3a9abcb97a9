#include "upgrade/archive.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mpscan.h"

enum { PATH_LIMIT = 4096 };

bool archive_fail(struct archive *a, const char *what)
{
    if (archive_good(a))
        opd_err_set(a->err, OPD_E_malformed_message, "the state's record '%s': %s", a->record,
                    what);
    return false;
}

bool archive_good(const struct archive *a)
{
    return !a->err->code;
}

// --- one field

// Where to write it, behind its key.
static struct buf *put(struct archive *a, const char *key)
{
    if (key) {
        pack_str(&a->fields, key);
        a->n_fields++;
    }
    return &a->fields;
}

// What was written; NULL: nothing.
static const value *get(struct archive *a, const char *key)
{
    if (key)
        return value_get(a->map, key);
    struct archive_list *list = &a->lists[a->depth - 1];
    return value_at(list->values, list->next++);
}

static void fail_field(struct archive *a, const char *key)
{
    char what[128];
    snprintf(what, sizeof what, "the field '%s' is absent or wrong", key ? key : "of a list");
    archive_fail(a, what);
}

// NULL where what was written is not of that type; that is an error.
static const value *get_type(struct archive *a, const char *key, enum value_type type)
{
    const value *v = get(a, key);
    if (v && value_type(v) == type)
        return v;
    fail_field(a, key);
    return NULL;
}

bool archive_has(const struct archive *a, const char *key)
{
    return !a->reading || value_get(a->map, key);
}

int64_t archive_number(struct archive *a, const char *key, int64_t v, int64_t least, int64_t most)
{
    if (!a->reading) {
        pack_int(put(a, key), v);
        return v;
    }
    const value *from = get_type(a, key, VALUE_INT);
    if (from && value_int(from) >= least && value_int(from) <= most)
        return value_int(from);
    fail_field(a, key);
    return least;
}

void archive_bool(struct archive *a, const char *key, bool *v)
{
    if (!a->reading) {
        pack_bool(put(a, key), *v);
        return;
    }
    const value *from = get_type(a, key, VALUE_BOOL);
    *v = from && value_bool(from);
}

void archive_float(struct archive *a, const char *key, double *v)
{
    if (!a->reading) {
        pack_float(put(a, key), *v);
        return;
    }
    const value *from = get_type(a, key, VALUE_FLOAT);
    *v = from ? value_float(from) : 0;
}

void archive_fd(struct archive *a, const char *key, int *v)
{
    int fd = *v;
    archive_int(a, key, &fd, -1, INT32_MAX);
    if (!a->reading && fd >= 0) {
        if (a->n_fds % 64 == 0)
            a->fds = mem_realloc(a->fds, (size_t)a->n_fds + 64, sizeof *a->fds);
        a->fds[a->n_fds++] = fd;
    }
    if (!a->reading)
        return;
    *v = a->check ? -1 : fd;
    // Nothing that this process starts shall inherit it.
    if (*v >= 0 && fcntl(*v, F_SETFD, FD_CLOEXEC) < 0) {
        *v = -1;
        archive_fail(a, "a descriptor is not open");
    }
}

// --- bytes

static void put_bytes(struct archive *a, const char *key, const void *bytes, size_t size)
{
    pack_bin(put(a, key), bytes ? bytes : "", size);
}

static const char *get_bytes(struct archive *a, const char *key, size_t *out_size)
{
    const value *from = get_type(a, key, VALUE_BIN);
    *out_size = 0;
    return from ? value_bytes(from, out_size) : "";
}

void archive_buf(struct archive *a, const char *key, struct buf *v)
{
    if (!a->reading) {
        put_bytes(a, key, v->bytes, v->size);
        return;
    }
    size_t size;
    const char *bytes = get_bytes(a, key, &size);
    buf_append(v, bytes, size);
}

void archive_chars(struct archive *a, const char *key, char *v, size_t size)
{
    if (!a->reading) {
        put_bytes(a, key, v, strlen(v));
        return;
    }
    size_t length;
    const char *bytes = get_bytes(a, key, &length);
    bool fits = length < size && !memchr(bytes, '\0', length);
    if (!fits)
        fail_field(a, key);
    snprintf(v, size, "%.*s", fits ? (int)length : 0, bytes);
}

void archive_str(struct archive *a, const char *key, char **v)
{
    if (!a->reading) {
        if (*v)
            put_bytes(a, key, *v, strlen(*v));
        else
            pack_nil(put(a, key));
        return;
    }
    free(*v);
    *v = NULL;
    const value *from = get(a, key);
    size_t size = 0;
    if (from && value_type(from) == VALUE_NIL)
        return;
    const char *bytes = from && value_type(from) == VALUE_BIN ? value_bytes(from, &size) : NULL;
    if (bytes && !memchr(bytes, '\0', size))
        *v = mem_strndup(bytes, size);
    else
        fail_field(a, key);
}

void archive_path(struct archive *a, const char *key, char **v)
{
    archive_str(a, key, v);
    if (a->reading && !(*v && **v == '/' && strlen(*v) < PATH_LIMIT))
        archive_fail(a, "a path is not absolute, or too long");
}

// --- lists

// An empty one is nil.
size_t archive_open(struct archive *a, const char *key, size_t n, size_t least, size_t most)
{
    if (!a->reading) {
        struct buf *out = put(a, key);
        if (n > 0)
            pack_array(out, n);
        else
            pack_nil(out);
        return n;
    }
    const value *from = get(a, key);
    bool is_list = from && (value_is_nil(from) || value_type(from) == VALUE_ARRAY);
    n = value_count(from);
    if (!is_list || n < least || n > most) {
        fail_field(a, key);
        n = least;
        from = NULL;
    }
    a->lists[a->depth++] = (struct archive_list){ .values = from };
    return n;
}

void archive_close(struct archive *a)
{
    a->depth -= a->reading;
}

// --- records

static void put_head(struct archive *a, const char *name, size_t n_fields)
{
    pack_array(&a->bytes, 3);
    pack_uint(&a->bytes, 2);
    pack_str(&a->bytes, name);
    pack_array(&a->bytes, 1);
    pack_map(&a->bytes, n_fields);
}

static const struct record {
    const char *name;
    archive_fields *fields;
    size_t of; // where the archive has what must have come before it
} records[] = {
#define RECORD(what, name, of) { name, state_##what, offsetof(struct archive, of) },
#include "upgrade/records.def"
#undef RECORD
};

void archive_put(struct archive *a, enum archive_record kind, void *thing)
{
    a->n_fields = 0;
    records[kind].fields(a, thing);
    put_head(a, records[kind].name, a->n_fields);
    buf_append(&a->bytes, a->fields.bytes, a->fields.size);
    buf_consume(&a->fields, a->fields.size);
}

static bool read_record(struct archive *a, const struct msg *msg)
{
    a->map = value_at(msg->params, 0);
    a->record = "?";
    a->depth = 0;
    if (!msg->notification || !a->map || value_type(a->map) != VALUE_MAP)
        return archive_fail(a, "it is no notification with a map");
    for (const struct record *r = records; r < records + N_RECORDS; r++) {
        if (strlen(r->name) != msg->method_size || memcmp(r->name, msg->method, msg->method_size))
            continue;
        a->record = r->name;
        void *of;
        memcpy(&of, (const char *)a + r->of, sizeof of);
        if (!of)
            return archive_fail(a, "what it is of has not come");
        return r->fields(a, NULL) && archive_good(a);
    }
    return archive_fail(a, "no record of that name is known");
}

bool archive_read(struct archive *a, const uint8_t *bytes, size_t size)
{
    while (!a->over) {
        struct mpscan scan = { 0 };
        if (size == 0 || mpscan_scan(&scan, bytes, size, NULL) != MPSCAN_DONE) {
            a->record = "?";
            return archive_fail(a, "it is cut off, or no MessagePack");
        }
        struct msg msg;
        bool ok = msg_decode(&msg, bytes, scan.position, a->err) && read_record(a, &msg);
        msg_finish(&msg);
        if (!ok)
            return false;
        bytes += scan.position;
        size -= scan.position;
    }
    return size == 0 || archive_fail(a, "more follows it");
}

// --- references

static void keep(struct archive_table *t, void *thing)
{
    if (t->n == 0 || (t->n >= 64 && (t->n & (t->n - 1)) == 0))
        t->items = mem_realloc(t->items, t->n ? t->n * 2 : 64, sizeof *t->items);
    t->items[t->n++] = thing;
}

static uint64_t number_of(const struct archive_table *t, uint64_t key)
{
    return (uint64_t)(uintptr_t)map_get(&t->numbers, key);
}

bool archive_keep(struct archive *a, struct archive_table *t, void *thing)
{
    uint64_t key = (uint64_t)(uintptr_t)thing;
    if (!a->reading && number_of(t, key))
        return false;
    keep(t, thing);
    if (!a->reading)
        map_put(&t->numbers, key, (void *)(uintptr_t)t->n);
    return true;
}

void *archive_ref(struct archive *a, const char *key, const struct archive_table *t, void *thing)
{
    uint64_t number = thing ? number_of(t, (uint64_t)(uintptr_t)thing) : 0;
    archive_int(a, key, &number, 0, (int64_t)t->n);
    if (a->reading)
        return number ? t->items[number - 1] : NULL;
    return thing;
}

// --- texts

// Only read: put_text() writes it.
bool state_text(struct archive *a, void *thing)
{
    char *text = thing;
    archive_str(a, "text", &text);
    keep(&a->texts, text);
    return text || archive_fail(a, "there is no text");
}

// Two texts of one hash are written as often as they are met in turns.
static uint64_t put_text(struct archive *a, char *text)
{
    size_t size = strlen(text);
    uint64_t hash = hash_bytes(text, size, 0), number = number_of(&a->texts, hash);
    if (number && strcmp(a->texts.items[number - 1], text) == 0)
        return number;
    keep(&a->texts, text);
    map_put(&a->texts.numbers, hash, (void *)(uintptr_t)(int64_t)a->texts.n);
    // Before the record that refers to it, some of whose fields wait in a->fields.
    put_head(a, "text", 1);
    pack_str(&a->bytes, "text");
    pack_bin(&a->bytes, text, size);
    return a->texts.n;
}

void archive_text(struct archive *a, const char *key, char **v)
{
    uint64_t number = !a->reading && *v ? put_text(a, *v) : 0;
    archive_int(a, key, &number, 0, (int64_t)a->texts.n);
    if (!a->reading)
        return;
    free(*v);
    *v = number ? mem_strdup(a->texts.items[number - 1]) : NULL;
}

void archive_forget(struct archive_table *t)
{
    free(t->items);
    map_finish(&t->numbers);
    *t = (struct archive_table){ 0 };
}

void archive_finish(struct archive *a)
{
    archive_forget(&a->texts);
    archive_forget(&a->versions);
    archive_forget(&a->holders);
    archive_forget(&a->imports);
    archive_forget(&a->storages);
    archive_forget(&a->tensors);
    buf_finish(&a->fields);
}
