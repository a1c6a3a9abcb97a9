// The broker's state: what is read is what was written, and nothing that is cut off, changed, or
// makes no sense is taken.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "upgrade/state.h"
#include "unit/state_broker.h"
#include "unit/suballoc_check.h"

enum { HEADER = 32, FORMAT_AT = 8, SIZE_AT = 16, HASH_AT = 24 };

static struct buf write_state(struct broker *b)
{
    struct state_out out = { 0 };
    state_write(&out, b, NULL);
    assert_int_equal(out.unknown_memory, 0);
    struct buf bytes = out.bytes;
    out.bytes = (struct buf){ 0 };
    state_out_finish(&out);
    return bytes;
}

static void seal(struct buf *bytes)
{
    uint64_t size = bytes->size - HEADER, hash = hash_bytes(bytes->bytes + HEADER, size, 0);
    memcpy(bytes->bytes + SIZE_AT, &size, 8);
    memcpy(bytes->bytes + HASH_AT, &hash, 8);
}

static struct broker *empty_broker(void)
{
    struct options options = { .compilers = 1 };
    return broker_new(&options);
}

// Whether it is taken; what is wrong goes into `says` of 1024 bytes, if that is not NULL.
static bool reads(const void *bytes, size_t size, char *says)
{
    struct opd_err err = { 0 };
    struct broker *b = empty_broker();
    uint8_t *copy = malloc(size ? size : 1); // of its size, so that reading on is seen
    memcpy(copy, bytes, size);
    bool ok = state_read(b, copy, size, true, &err);
    assert_int_equal(ok, err.code == OPD_E_none);
    if (says)
        memcpy(says, err.msg, sizeof err.msg);
    opd_err_clear(&err);
    broker_discard(b);
    free(copy);
    return ok;
}

static void check_memory(struct broker *b, struct broker *again)
{
    const struct device *was = b->devices.at[0], *is = again->devices.at[0];
    assert_true(suballoc_check(&is->space.map));
    assert_int_equal(is->space.map.used, was->space.map.used);
    assert_int_equal(is->space.map.reserved, was->space.map.reserved);
    assert_int_equal(is->space.n_tensors, was->space.n_tensors);
    assert_int_equal(is->space.named_bytes, was->space.named_bytes);
    assert_true(is->space.named_bytes > 0);
    assert_int_equal(is->queue.busy_ns, 5);
    assert_int_equal(is->restart.n_failures, 1);
    assert_string_equal(is->info.blas, "a library");
    assert_string_equal(is->info.uuid, "GPU-1");
    assert_int_equal(again->devices.n_regions, 8);
    for (uint32_t i = 0; i < was->regions.n; i++) {
        struct device_region expected = was->regions.list[i];
        expected.fd = is->regions.list[i].fd;
        assert_memory_equal(&is->regions.list[i], &expected, sizeof expected);
    }
    static const char *const names[] = { "named", "suspect" };
    for (int i = 0; i < 2; i++) {
        struct dev_ref before, place;
        assert_true(tensor_address(tensor_find(&b->names, names[i]), 0, &before));
        assert_true(tensor_address(tensor_find(&again->names, names[i]), 0, &place));
        assert_true(place.region == before.region && place.offset == before.offset);
        assert_int_not_equal(place.offset % 4096, 0); // it ends where a page does
    }
}

static void check_holders(struct broker *again)
{
    const struct conn *c = again->clients.first;
    const struct tensor *t = tensor_find(&again->names, "suspect");
    const struct holder *gone = t->storage->holder;
    assert_int_equal(gone->pid, 77);
    assert_string_equal(gone->client, "one that has gone");
    assert_int_equal(gone->bytes[0], t->storage->block->size);
    assert_int_equal(gone->named[0], t->storage->block->size);
    assert_int_equal(t->storage->n_names, 1);
    assert_int_equal(c->holder->pid, 78);
    assert_string_equal(c->holder->client, "a client");
    assert_int_equal(c->holder->bytes[0], again->devices.at[0]->space.map.used - gone->bytes[0]);
}

static void check_suspect(struct broker *again)
{
    const struct storage *s = tensor_find(&again->names, "suspect")->storage;
    assert_ptr_equal(s, map_get(&again->clients.first->exports, 13));
    const char *why = writes_suspect(s, 69, 200);
    assert_string_equal(why, "keeps: it failed");
    assert_non_null(writes_suspect(s, 9, 10));
    assert_null(writes_suspect(s, 10, 60));
    assert_null(writes_suspect(s, 70, 200));
}

static void check_imports(const struct broker *again)
{
    const struct conn *c = again->clients.first;
    const struct import *m = map_get(&c->imports, 12);
    const struct tensor *in = map_get(&c->tensors, 10), *lost = map_get(&c->tensors, 11);
    assert_int_equal(c->imports.count, 1);
    assert_ptr_equal(in->storage->import, m);
    assert_int_equal(m->refs, 2);
    assert_int_equal(m->fate->state, FATE_DONE);
    struct dev_ref ref;
    assert_true(tensor_address(in, 1, &ref));
    assert_int_equal(ref.region, 4);
    assert_int_equal(ref.offset, 65);
    assert_null(in->storage->fate);
    assert_int_equal(lost->storage->fate->state, FATE_FAILED);
    assert_int_equal(lost->storage->import->fate->state, FATE_FAILED);
    assert_int_equal(lost->storage->import->region, 5);
}

static void check_counters(const struct broker *again)
{
    struct pool_stats stats;
    pool_stats(again->pool, &stats);
    assert_true(stats.compiled == 1 && stats.cached == 2 && stats.failed == 3);
    assert_true(stats.seconds > 1.4 && stats.seconds < 1.6 && stats.cache_bytes == 4);
    assert_int_equal(again->turn.errors_of[3], 5);
    assert_int_equal(again->turn.errors_of[TURN_MAX_ERRORS - 1], 6);
    assert_int_equal(again->counters.requests, 21);
    assert_int_equal(again->turn.n_errors, 22);
    assert_int_equal(again->counters.contexts, 23);
    const struct run_stats *runs = registry_operator(&again->registry, "keeps", SCOPE_FILES)->runs;
    assert_true(runs->forward == 11 && runs->backward == 12 && runs->failed == 13 &&
                runs->ns == 14);
}

// Descriptors are not there in a mere look.
static void give_fds(const struct broker *b, struct broker *again)
{
    for (uint32_t i = 0; i < b->devices.at[0]->regions.n; i++)
        again->devices.at[0]->regions.list[i].fd = b->devices.at[0]->regions.list[i].fd;
    struct stream *s = &again->clients.first->stream;
    const struct stream *was = &b->clients.first->stream;
    s->fds[s->n_fds++] = was->fds[0];
    for (size_t i = 0; i < was->n_out_fds; i++) {
        stream_attach_fd(s, was->out_fds[i].fd);
        s->out_fds[i].at = was->out_fds[i].at;
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    struct broker *b = state_make_broker(), *again = empty_broker();
    struct buf first = write_state(b);
    struct opd_err err = { 0 };
    if (!state_read(again, first.bytes, first.size, true, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(again->handover.count, 1);
    assert_int_equal(again->clients.first->stream.in.size, 11);
    assert_ptr_equal(again->events.listeners, &again->clients.first->follower);
    assert_true(again->clients.first->traces);
    assert_int_equal(again->clients.n_tracers, 1);
    assert_int_equal(again->clients.n_traced, 24);
    assert_non_null(tensor_find(&again->names, "named"));
    assert_int_equal(registry_find(&again->registry, "keeps")->n_contexts, 1);
    assert_true(again->reload.sources.at[0]->failure.shadowed);
    struct opd_operator *o = registry_operator(&again->registry, "keeps", SCOPE_FILES);
    assert_int_equal(again->registry.published.n_given, 3);
    assert_int_equal(o->slot, 2);
    assert_ptr_equal(map_get(&again->clients.first->exported, 2), o);
    check_memory(b, again);
    check_holders(again);
    check_suspect(again);
    check_imports(again);
    check_counters(again);
    give_fds(b, again);
    again->handover.count = 0;
    struct buf second = write_state(again);
    assert_int_equal(first.size, second.size);
    assert_memory_equal(first.bytes, second.bytes, first.size);
    buf_finish(&first);
    buf_finish(&second);
    state_free_broker(b);
    state_free_broker(again);
}

// What was given up while an executor that was left may write it is no storage any more, and not
// free.
static void test_memory_that_is_held(void **state)
{
    (void)state;
    struct broker *b = state_make_broker();
    struct device *d = b->devices.at[0];
    struct holder *holder = tensor_find(&b->names, "suspect")->storage->holder;
    struct state_out held = { 0 };
    struct storage *s[2];
    struct opd_err err = { 0 };
    struct buf before = write_state(b);
    for (int i = 0; i < 2; i++)
        assert_int_equal(storage_new(&d->space, 600, holder, &s[i], &err), ALLOC_OK);
    d->n_writing = 1;
    for (int i = 0; i < 2; i++)
        storage_unref(s[i]);
    state_write(&held, b, NULL);
    assert_int_equal(held.bytes.size, before.size);
    assert_true(held.unknown_memory > 0);
    d->n_writing = 0;
    device_release_held(d);
    assert_true(suballoc_check(&d->space.map));
    state_out_finish(&held);
    held = (struct state_out){ .bytes = write_state(b) };
    assert_int_equal(held.bytes.size, before.size);
    state_out_finish(&held);
    buf_finish(&before);
    state_free_broker(b);
}

// Each goes with its byte, also where a part of what was to be sent had gone.
static void test_descriptors_that_wait(void **state)
{
    (void)state;
    struct broker *b = state_make_broker(), *again = empty_broker();
    struct stream *s = &b->clients.first->stream;
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    s->out_fds[0].fd = pipes[0];
    s->out_fds[1].fd = pipes[1];
    s->n_fds = 0;
    s->sent = s->out_start = 6; // "nt", then the first one
    for (int i = 0; i < 2; i++)
        s->out_fds[i].at = i ? 13 : 8;
    for (uint32_t i = 0; i < b->devices.at[0]->regions.n; i++) {
        struct device_region *r = &b->devices.at[0]->regions.list[i];
        r->fd = r->fd < 0 ? -1 : pipes[0];
    }
    struct buf bytes = write_state(b);
    struct opd_err err = { 0 };
    if (!state_read(again, bytes.bytes, bytes.size, false, &err))
        fail_msg("%s", err.msg);
    const struct stream *now = &again->clients.first->stream;
    assert_memory_equal(now->out.bytes, "nt this and this", 16);
    assert_int_equal(now->n_out_fds, 2);
    assert_int_equal(now->out_fds[0].at, 2);
    assert_int_equal(now->out_fds[0].fd, pipes[0]);
    assert_int_equal(now->out_fds[1].at, 7);
    assert_int_equal(now->out_fds[1].fd, pipes[1]);
    buf_finish(&bytes);
    state_free_broker(b);
    state_free_broker(again);
    close(pipes[0]);
    close(pipes[1]);
}

static void test_format(void **state)
{
    (void)state;
    struct broker *b = state_make_broker();
    struct buf bytes = write_state(b);
    char says[1024];
    assert_true(reads(bytes.bytes, bytes.size, NULL));
    uint32_t format = STATE_FORMAT + 1;
    memcpy(bytes.bytes + FORMAT_AT, &format, 4);
    assert_false(reads(bytes.bytes, bytes.size, says));
    assert_non_null(strstr(says, "format 2"));
    format = STATE_OLDEST - 1;
    memcpy(bytes.bytes + FORMAT_AT, &format, 4);
    assert_false(reads(bytes.bytes, bytes.size, says));
    format = STATE_FORMAT;
    memcpy(bytes.bytes + FORMAT_AT, &format, 4);
    bytes.bytes[0] = 'x';
    assert_false(reads(bytes.bytes, bytes.size, says));
    assert_non_null(strstr(says, "no state"));
    buf_finish(&bytes);
    state_free_broker(b);
}

static void test_cut_off_and_damaged(void **state)
{
    (void)state;
    struct broker *b = state_make_broker();
    struct buf bytes = write_state(b);
    for (size_t size = 0; size < bytes.size; size += size < 256 ? 1 : 97)
        assert_false(reads(bytes.bytes, size, NULL));
    // The same under a header that fits: the records end too soon.
    for (size_t size = HEADER; size < bytes.size; size += 53) {
        struct buf cut = { 0 };
        buf_append(&cut, bytes.bytes, size);
        seal(&cut);
        assert_false(reads(cut.bytes, cut.size, NULL));
        buf_finish(&cut);
    }
    for (size_t i = HEADER; i < bytes.size; i += 101) {
        bytes.bytes[i] ^= 0x40;
        assert_false(reads(bytes.bytes, bytes.size, NULL));
        bytes.bytes[i] ^= 0x40;
    }
    buf_append(&bytes, "\xc0", 1); // more behind its end
    seal(&bytes);
    assert_false(reads(bytes.bytes, bytes.size, NULL));
    buf_finish(&bytes);
    state_free_broker(b);
}

// Of a program that is newer than this one.
static void test_unknown_record(void **state)
{
    (void)state;
    static const char context[] = "\x93\x02\xa7"
                                  "context";
    struct broker *b = state_make_broker();
    struct buf bytes = write_state(b);
    char says[1024];
    uint8_t *name = memmem(bytes.bytes, bytes.size, context, sizeof context - 1);
    assert_non_null(name);
    memcpy(name + 3, "novelty", 7);
    seal(&bytes);
    assert_false(reads(bytes.bytes, bytes.size, says));
    assert_non_null(strstr(says, "the state's record 'novelty': no record of that name is known; "
                                 "this program is older than what wrote it"));
    buf_finish(&bytes);
    state_free_broker(b);
}

// Under a right hash any byte may be any other: what is taken then makes sense, and is not read
// past its end (the sanitizers see that).
static void test_every_byte_changed(void **state)
{
    (void)state;
    struct broker *b = state_make_broker();
    struct buf bytes = write_state(b);
    for (size_t i = HEADER; i < bytes.size; i += 3) {
        uint8_t was = bytes.bytes[i];
        bytes.bytes[i] = (uint8_t)(was + 1 + i % 7);
        seal(&bytes);
        reads(bytes.bytes, bytes.size, NULL);
        bytes.bytes[i] = was;
    }
    buf_finish(&bytes);
    state_free_broker(b);
}

static void check_refused(struct broker *b, const char *what)
{
    char says[1024];
    struct buf bytes = write_state(b);
    assert_false(reads(bytes.bytes, bytes.size, says));
    if (!strstr(says, what))
        fail_msg("'%s' does not say '%s'", says, what);
    buf_finish(&bytes);
    state_free_broker(b);
}

static struct storage *storage_of(struct broker *b, uint64_t id)
{
    return ((struct tensor *)map_get(&b->clients.first->tensors, id))->storage;
}

static void test_what_makes_no_sense(void **state)
{
    (void)state;
    struct broker *b = state_make_broker();
    ((struct tensor *)map_get(&b->clients.first->tensors, 3))->offset = 8;
    check_refused(b, "does not lie in its storage");
    b = state_make_broker();
    storage_of(b, 1)->size = 1 << 20; // more than the piece that it has
    check_refused(b, "its memory is not there");
    b = state_make_broker();
    struct context *ctx = map_get(&b->clients.first->contexts, 9);
    ctx->saved[0]->size = 4;
    check_refused(b, "what it keeps is not what its operator keeps");
    b = state_make_broker();
    ((struct shm *)map_get(&b->clients.first->shms, 5))->size = 4097;
    check_refused(b, "its region is not that of shared memory");
    b = state_make_broker();
    ((struct shm *)map_get(&b->clients.first->shms, 5))->regions[0] = 0; // a chunk
    check_refused(b, "its region is not that of shared memory");
    b = state_make_broker();
    storage_of(b, 3)->block->offset += 512; // into the next one
    check_refused(b, "its memory is not there");
    b = state_make_broker();
    storage_of(b, 10)->import_offset = 3901; // 100 bytes of 4000
    check_refused(b, "its memory is not there");
    b = state_make_broker();
    storage_of(b, 10)->import->region = 0; // a chunk
    check_refused(b, "its region is not that of a client's memory");
    b = state_make_broker();
    storage_of(b, 10)->import->size = 4097;
    check_refused(b, "its region is not that of a client's memory");
    b = state_make_broker();
    tensor_find(&b->names, "suspect")->storage->writes->next->end = 201;
    check_refused(b, "ends behind it");
    b = state_make_broker();
    b->devices.at[0]->regions.list[4].serial = 7; // the first one's
    check_refused(b, "there twice");
    b = state_make_broker();
    b->devices.n_regions = 6;
    check_refused(b, "there twice");
    b = state_make_broker();
    map_put(&b->clients.first->exports, 14, storage_ref(storage_of(b, 10)));
    check_refused(b, "its storage is a client's memory");
    b = state_make_broker();
    b->events.next++;
    check_refused(b, "that is no event");
    b = state_make_broker();
    registry_operator(&b->registry, "keeps", SCOPE_FILES)->slot = 4; // of three
    check_refused(b, "slot");
    b = state_make_broker();
    registry_operator(&b->registry, "keeps", SCOPE_FILES)->slot = 0;
    check_refused(b, "it has no slot");
    b = state_make_broker();
    b->clients.last_id = 0;
    check_refused(b, "in use, or of the future");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_memory_that_is_held),
        cmocka_unit_test(test_descriptors_that_wait),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_unknown_record),
        cmocka_unit_test(test_cut_off_and_damaged),
        cmocka_unit_test(test_every_byte_changed),
        cmocka_unit_test(test_what_makes_no_sense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
