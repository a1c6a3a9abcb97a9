#include "torch/loaded.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/version_page.h"
#include "torch/bind.h"
#include "torch/cuda.h"
#include "torch/functions.h"
#include "torch/image.h"

enum {
    N_BUCKETS = 1024,
    MANY = 4096, // plans of one kernel
    N_LAST = 3,
    LOOK_MS = 50, // between looks for another daemon
};

_Thread_local struct loaded_options loaded_options;
bool loaded_isolated;

static _Thread_local struct {
    const struct torch_op *op; // NULL: none
    uint64_t hash;
    uint32_t version; // that was asked for; 0: that which serves
    int32_t device_type, device_index;
    uint32_t news; // upper half of the page's word
    unsigned n_words;
    int first[CALL_MAX_ARGS + 1]; // of an operator with lists: as the call's
    uint64_t *key;                // own_key, or allocated where it is longer
    uint64_t own_key[CALL_OWN_KEY];
} wanted; // what was looked for in vain

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct version_page *page; // under the lock, as all that follows
static struct loaded *retired;
static unsigned n_loaded, n_retired;
static struct torch_op *operators;
static uint64_t serials = (uint64_t)1 << 62; // above the stamps that Python makes
static int64_t looked_ms;                    // for another daemon
static struct {
    const struct torch_op *op;
    uint32_t version;
} last[N_LAST];

void loaded_lock(void)
{
    pthread_mutex_lock(&lock);
}

void loaded_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static uint64_t hash_words(const uint64_t *words, unsigned n)
{
    uint64_t h = n;
    for (unsigned i = 0; i < n; i++) {
        h = (h ^ words[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return h;
}

// Of a backward the call itself says what it is of, in its last two integers: the gradients that
// are wanted, and the plan that ran forward.
static void key_backward(const struct torch_op *op, struct call *call)
{
    uint32_t outputs = op->n_outputs < 32 ? (1u << op->n_outputs) - 1 : ~0u;
    call->key[1] = (uint64_t)call->last[0];
    call->key[2] = (uint64_t)call->last[1];
    call->key[3] = call->absent & outputs;
    call->n_words = 4;
}

// --- what goes

void loaded_ref(struct loaded *p)
{
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
}

static void retire(struct loaded *p) // under the lock
{
    p->next = retired;
    retired = p;
    n_retired++;
}

void loaded_unref(struct loaded *p)
{
    if (!p || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) > 1)
        return;
    loaded_lock();
    retire(p);
    loaded_unlock();
}

// The table's own count: under the lock, so not by loaded_unref().
static void drop(struct loaded *p)
{
    n_loaded--;
    p->op->n_loaded--;
    if (atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) == 1)
        retire(p);
}

static void free_plan(struct loaded *p)
{
    for (uint32_t i = 0; p->images && i < p->x.n_kernels; i++)
        image_unref(p->images[i]);
    cuda_use_free(p->cuda);
    free(p->images);
    free(p->small);
    free(p->operands);
    free(p->results);
    free(p->bytes);
    free(p->key);
    free(p);
}

void loaded_tidy(void)
{
    loaded_lock();
    struct loaded *list = retired;
    retired = NULL;
    loaded_unlock();
    while (list) {
        struct loaded *p = list;
        list = p->next;
        bool done = cuda_use_is_over(p->cuda);
        loaded_lock();
        n_retired--;
        if (!done)
            retire(p);
        loaded_unlock();
        if (done)
            free_plan(p);
    }
}

static bool is_kept(const uint32_t kept[KEPT_VERSIONS], uint32_t version)
{
    for (int i = 0; i < KEPT_VERSIONS; i++)
        if (kept[i] == version)
            return true;
    return false;
}

// Drops the plans of an operator but for those versions; of all, where `kept` is NULL.
static void drop_others(struct torch_op *op, const uint32_t *kept)
{
    for (unsigned i = 0; op->buckets && i < N_BUCKETS; i++) {
        for (struct loaded **at = &op->buckets[i]; *at;) {
            struct loaded *p = *at;
            if (kept && is_kept(kept, p->outlived ? 0 : p->version)) {
                at = &p->next;
                continue;
            }
            *at = p->next;
            drop(p);
        }
    }
}

// Another daemon counts versions anew. Backwards stay, for the forwards that ran before: until the
// daemon after that, or until there are versions enough of this one.
static void outlive_daemon(struct torch_op *op)
{
    op->slot = op->heard = 0;
    memset(op->versions, 0, sizeof op->versions);
    for (unsigned i = 0; op->buckets && i < N_BUCKETS; i++) {
        for (struct loaded **at = &op->buckets[i]; *at;) {
            struct loaded *p = *at;
            if (op->kind == LOADED_BACKWARD && !p->outlived) {
                p->outlived = true;
                at = &p->next;
                continue;
            }
            *at = p->next;
            drop(p);
        }
    }
}

bool loaded_set_page(const struct version_page *p)
{
    loaded_lock();
    const struct version_page *before = page;
    bool same = p && before && memcmp(p->boot, before->boot, sizeof p->boot) == 0;
    page = p;
    looked_ms = 0;
    for (struct torch_op *op = operators; !same && op; op = op->next)
        outlive_daemon(op);
    loaded_unlock();
    version_page_close(before);
    loaded_tidy();
    return same;
}

void loaded_count(unsigned *out_loaded, unsigned *out_retired)
{
    loaded_tidy();
    loaded_lock();
    *out_loaded = n_loaded;
    *out_retired = n_retired;
    loaded_unlock();
}

void loaded_register(struct torch_op *op)
{
    loaded_lock();
    op->next = operators;
    operators = op;
    loaded_unlock();
}

// --- finding

static void remember(const struct torch_op *op, const struct call *call, uint64_t hash)
{
    wanted.op = op;
    wanted.hash = hash;
    wanted.version = loaded_options.version;
    wanted.device_type = call->device_type;
    wanted.device_index = call->device_index;
    wanted.n_words = call->n_words;
    if (wanted.key != wanted.own_key)
        free(wanted.key);
    wanted.key = call->n_words <= CALL_OWN_KEY ? wanted.own_key
                                               : mem_alloc(call->n_words * sizeof *call->key);
    memcpy(wanted.key, call->key, call->n_words * sizeof *call->key);
    if (op->lists)
        memcpy(wanted.first, call->first, sizeof wanted.first);
}

static void note_last(const struct loaded *p)
{
    if (last[0].op == p->op && last[0].version == p->version)
        return;
    memmove(&last[1], &last[0], (N_LAST - 1) * sizeof *last);
    last[0].op = p->op;
    last[0].version = p->version;
}

void loaded_tell_last(char *out, size_t size)
{
    size_t at = 0;
    *out = '\0';
    loaded_lock();
    for (int i = 0; i < N_LAST && last[i].op && at < size; i++) {
        int n = snprintf(out + at, size - at, "%s%s version %u", i ? ", " : "", last[i].op->name,
                         last[i].version);
        at += n > 0 ? (size_t)n : 0;
    }
    loaded_unlock();
}

// The version that a call is to run; 0: Python knows. Backward runs its forward's, whichever it
// was.
static bool find_version(struct torch_op *op, uint32_t *out)
{
    *out = loaded_options.version;
    wanted.news = op->heard;
    if (op->kind == LOADED_BACKWARD || *out)
        return true;
    if (!op->slot)
        return false;
    uint64_t word = version_page_word(page, op->slot);
    *out = (uint32_t)word;
    wanted.news = (uint32_t)(word >> 32); // changed: an edit has failed, the daemon's reply tells
    return wanted.news == op->heard && *out != 0;
}

static struct loaded *look_up(struct torch_op *op, const struct call *call, uint64_t hash,
                              uint32_t version)
{
    if (!op->buckets)
        return NULL;
    for (struct loaded *p = op->buckets[hash % N_BUCKETS]; p; p = p->next)
        if (p->hash == hash && p->n_words == call->n_words &&
            (p->version == version || op->kind == LOADED_BACKWARD) &&
            memcmp(p->key, call->key, p->n_words * sizeof *p->key) == 0)
            return p;
    return NULL;
}

static bool is_gone(void)
{
    struct timespec now;
    if (!page || loaded_options.alone || version_page_lives(page))
        return false;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    int64_t ms = now.tv_sec * 1000 + now.tv_nsec / 1000000;
    if (looked_ms && ms - looked_ms < LOOK_MS)
        return false;
    looked_ms = ms;
    return true;
}

enum loaded_answer loaded_find(struct torch_op *op, struct call *call, struct loaded **out)
{
    uint32_t version;
    if (call->refused || (loaded_options.is_set ? loaded_options.isolated : loaded_isolated)) {
        wanted.op = NULL;
        return LOADED_NO;
    }
    if (op->kind == LOADED_BACKWARD)
        key_backward(op, call);
    uint64_t hash = hash_words(call->key, call->n_words);
    loaded_lock();
    bool gone = is_gone();
    struct loaded *p = !gone && find_version(op, &version) ? look_up(op, call, hash, version)
                                                           : NULL;
    if (p) {
        loaded_ref(p);
        note_last(p);
    }
    loaded_unlock();
    if (!p)
        remember(op, call, hash);
    *out = p;
    return p ? LOADED_YES : gone ? LOADED_GONE : LOADED_NO;
}

// --- loading

static void move_section(struct exported *x, const uint8_t *from, const uint8_t *to)
{
#define MOVE(field) x->field = (const void *)(to + ((const uint8_t *)x->field - from))
    MOVE(head);
    MOVE(operands);
    MOVE(steps);
    MOVE(slots);
    MOVE(matmuls);
    MOVE(kernels);
    MOVE(args);
    MOVE(texts);
#undef MOVE
    x->payloads = NULL;
    x->mapping = NULL;
    x->mapping_size = 0;
}

// All but the images, which are loaded and may be large, in memory of our own.
static void keep_plan(struct loaded *p, const struct exported *x)
{
    size_t size = (size_t)x->head->sections[EXPORTED_PAYLOADS].offset;
    p->bytes = mem_alloc(size);
    memcpy(p->bytes, x->head, size);
    p->x = *x;
    move_section(&p->x, (const uint8_t *)x->head, p->bytes);
}

static bool load_images(struct loaded *p, const struct exported *x, struct opd_err *err)
{
    p->images = mem_zalloc(x->n_kernels + 1, sizeof *p->images);
    for (uint32_t i = 0; i < x->n_kernels; i++)
        if (!(p->images[i] = image_load(x, i, p->device_index, err)))
            return false;
    return p->device_index < 0 || cuda_use_new(p, err);
}

static bool check_fit(const struct torch_op *op, const struct exported *x, uint32_t slot,
                      struct opd_err *err)
{
    bool on_cuda = wanted.device_type == torch.cuda;
    bool backward = op->kind == LOADED_BACKWARD;
    if (wanted.op != op || !page || slot == 0 || slot >= page->n_slots)
        return opd_err_set(err, OPD_E_internal, "%s: no call of this thread looked for a plan",
                           op->name);
    if ((x->head->device == EXPORTED_CUDA) != on_cuda ||
        (x->head->direction == EXPORTED_BACKWARD) != backward)
        return opd_err_set(err, OPD_E_unavailable, "%s: the plan is for something else", op->name);
    return true;
}

// There is one where another thread has loaded it meanwhile, and where the daemon was asked because
// an edit had failed. It stays: backwards are known by its serial.
static struct loaded *find_same(const struct torch_op *op, const struct loaded *p)
{
    struct loaded *q = op->buckets ? op->buckets[p->hash % N_BUCKETS] : NULL;
    while (q && (q->hash != p->hash || q->version != p->version || q->n_words != p->n_words ||
                 memcmp(q->key, p->key, p->n_words * sizeof *p->key) != 0))
        q = q->next;
    return q;
}

// The plan's serial, or that of the same one that was there, which is then used.
static uint64_t insert(struct torch_op *op, struct loaded *p, uint32_t slot)
{
    op->heard = op->slot == slot ? wanted.news : (uint32_t)(version_page_word(page, slot) >> 32);
    op->slot = slot;
    const struct loaded *same = find_same(op, p);
    if (same) {
        retire(p);
        return same->serial;
    }
    if (!is_kept(op->versions, p->version)) {
        memmove(op->versions + 1, op->versions, (KEPT_VERSIONS - 1) * sizeof *op->versions);
        op->versions[0] = p->version;
        drop_others(op, op->versions);
    }
    if (op->n_loaded >= MANY)
        drop_others(op, NULL);
    if (!op->buckets)
        op->buckets = mem_zalloc(N_BUCKETS, sizeof *op->buckets);
    struct loaded **bucket = &op->buckets[p->hash % N_BUCKETS];
    p->next = *bucket;
    *bucket = p;
    op->n_loaded++;
    n_loaded++;
    return p->serial = ++serials;
}

bool loaded_add(struct torch_op *op, int fd, uint32_t slot, uint64_t *serial, struct opd_err *err)
{
    struct exported x = { 0 };
    if (!exported_open(&x, fd, err))
        return false;
    struct loaded *p = mem_zalloc(1, sizeof *p);
    atomic_init(&p->refs, 1);
    p->op = op;
    p->version = x.head->version;
    p->device_index = wanted.device_type == torch.cuda ? wanted.device_index : -1;
    bool ok = check_fit(op, &x, slot, err);
    if (ok) {
        keep_plan(p, &x);
        ok = bind_plan(p, wanted.first, err) && load_images(p, &x, err);
    }
    exported_close(&x);
    if (!ok) {
        free_plan(p);
        return false;
    }
    p->hash = wanted.hash;
    p->n_words = wanted.n_words;
    p->key = mem_alloc(p->n_words * sizeof *p->key);
    memcpy(p->key, wanted.key, p->n_words * sizeof *p->key);
    loaded_lock();
    *serial = insert(op, p, slot);
    loaded_unlock();
    loaded_tidy();
    return true;
}
