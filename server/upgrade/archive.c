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

// The buffer for a field, behind its key.
static struct buf *put(struct archive *a, const char *key)
{
    if (key) {
        pack_str(&a->fields, key);
        a->n_fields++;
    }
    return &a->fields;
}

// The field that was written; NULL: it was not.
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
    if (!a->reading) {
        if (fd >= 0)
            buf_append(&a->fds, &fd, sizeof fd);
        return;
    }
    *v = a->check ? -1 : fd;
    // Nothing that this process starts shall inherit it.
    if (*v >= 0 && fcntl(*v, F_SETFD, FD_CLOEXEC) < 0) {
        *v = -1;
        archive_fail(a, "a descriptor is not open");
    }
}

// --- bytes

void archive_buf(struct archive *a, const char *key, struct buf *v)
{
    if (!a->reading) {
        pack_bin(put(a, key), v->size > 0 ? v->bytes : (const void *)"", v->size);
        return;
    }
    size_t size = 0;
    const value *from = get_type(a, key, VALUE_BIN);
    const char *bytes = from ? value_bytes(from, &size) : "";
    buf_append(v, bytes, size);
}

void archive_str(struct archive *a, const char *key, char **v)
{
    if (!a->reading) {
        struct buf *out = put(a, key);
        if (*v)
            pack_bin(out, *v, strlen(*v));
        else
            pack_nil(out);
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

void archive_chars(struct archive *a, const char *key, char *v, size_t size)
{
    char *s = a->reading ? NULL : v;
    archive_str(a, key, &s);
    if (!a->reading)
        return;
    bool fits = s && strlen(s) < size;
    if (!fits)
        fail_field(a, key);
    snprintf(v, size, "%s", fits ? s : "");
    free(s);
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
    size_t outer_size = a->fields.size, outer_n = a->n_fields; // of the record that refers to it
    a->n_fields = 0;
    records[kind].fields(a, thing);
    pack_array(&a->bytes, 3);
    pack_uint(&a->bytes, 2);
    pack_str(&a->bytes, records[kind].name);
    pack_array(&a->bytes, 1);
    pack_map(&a->bytes, a->n_fields);
    buf_append(&a->bytes, a->fields.bytes + outer_size, a->fields.size - outer_size);
    a->fields.size = outer_size;
    a->n_fields = outer_n;
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
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)msg->method_size, msg->method);
    a->record = name;
    archive_fail(a, "no record of that name is known; this program is older than what wrote it");
    a->record = "?";
    return false;
}

bool archive_read(struct archive *a, const uint8_t *bytes, size_t size)
{
    while (!a->over && !(a->part && size == 0)) {
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

static void add(struct archive_table *t, void *thing)
{
    if (t->n == 0 || (t->n >= 64 && (t->n & (t->n - 1)) == 0))
        t->items = mem_realloc(t->items, t->n ? t->n * 2 : 64, sizeof *t->items);
    t->items[t->n++] = thing;
}

void archive_made(struct archive *a, enum archive_record kind, void *thing)
{
    add(&a->tables[kind], thing);
}

static uint64_t find(const struct archive_table *t, uint64_t key)
{
    return (uint64_t)(uintptr_t)map_get(&t->numbers, key);
}

static uint64_t put_new(struct archive *a, enum archive_record kind, void *thing, uint64_t key)
{
    struct archive_table *t = &a->tables[kind];
    archive_put(a, kind, thing);
    add(t, thing);
    map_put(&t->numbers, key, (void *)(uintptr_t)t->n);
    return t->n;
}

bool archive_need(struct archive *a, enum archive_record kind, void *thing)
{
    uint64_t key = (uint64_t)(uintptr_t)thing;
    return thing && !find(&a->tables[kind], key) && put_new(a, kind, thing, key);
}

// The thing of that number, where the archive reads.
static void *refer(struct archive *a, const char *key, enum archive_record kind, uint64_t number)
{
    const struct archive_table *t = &a->tables[kind];
    archive_int(a, key, &number, 0, (int64_t)t->n);
    return number ? t->items[number - 1] : NULL;
}

void *archive_ref(struct archive *a, const char *key, enum archive_record kind, void *thing)
{
    if (a->reading)
        return refer(a, key, kind, 0);
    archive_need(a, kind, thing);
    return refer(a, key, kind, thing ? find(&a->tables[kind], (uint64_t)(uintptr_t)thing) : 0);
}

// --- texts

bool state_text(struct archive *a, void *thing)
{
    char *text = thing;
    archive_str(a, "text", &text);
    if (a->reading)
        archive_made(a, RECORD_text, text);
    return text || archive_fail(a, "there is no text");
}

// Two texts of one hash are written as often as they are met in turns.
static uint64_t number_text(struct archive *a, char *text)
{
    uint64_t hash = hash_bytes(text, strlen(text), 0), number = find(&a->tables[RECORD_text], hash);
    if (number && strcmp(a->tables[RECORD_text].items[number - 1], text) == 0)
        return number;
    return put_new(a, RECORD_text, text, hash);
}

void archive_text(struct archive *a, const char *key, char **v)
{
    if (!a->reading) {
        refer(a, key, RECORD_text, *v ? number_text(a, *v) : 0);
        return;
    }
    const char *text = refer(a, key, RECORD_text, 0);
    free(*v);
    *v = text ? mem_strdup(text) : NULL;
}

void archive_finish(struct archive *a)
{
    for (int i = 0; i < N_RECORDS; i++) {
        free(a->tables[i].items);
        map_finish(&a->tables[i].numbers);
    }
    map_finish(&a->reached);
    buf_finish(&a->fields);
}
