// The broker's state: what is read is what was written, and nothing that is cut off, changed, or
// makes no sense is taken.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "state.h"
#include "unit/state_broker.h"

enum { HEADER = 32, FORMAT_AT = 8, SIZE_AT = 16, HASH_AT = 24 };

static struct buf write_state(struct broker *b)
{
    struct state_out out = { 0 };
    state_write(&out, b, NULL, 17);
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

static void test_round_trip(void **state)
{
    (void)state;
    struct broker *b = state_make_broker(), *again = empty_broker();
    struct buf first = write_state(b);
    struct opd_err err = { 0 };
    if (!state_read(again, first.bytes, first.size, true, &err))
        fail_msg("%s", err.msg);
    assert_int_equal(again->n_upgrades, 1);
    assert_int_equal(again->devices[0]->memory.used, b->devices[0]->memory.used);
    assert_int_equal(again->devices[0]->memory.reserved, b->devices[0]->memory.reserved);
    assert_int_equal(again->devices[0]->n_tensors, b->devices[0]->n_tensors);
    assert_true(suballoc_check(&again->devices[0]->memory));
    assert_int_equal(again->conns->stream.in.size, 11);
    assert_non_null(tensor_find(again, "named"));
    assert_int_equal(registry_find(&again->registry, "keeps")->n_contexts, 1);
    // Descriptors are not there in a mere look.
    for (uint32_t i = 0; i < b->devices[0]->n_regions; i++)
        again->devices[0]->regions[i].fd = b->devices[0]->regions[i].fd;
    again->n_upgrades = 0;
    struct buf second = write_state(again);
    assert_int_equal(first.size, second.size);
    assert_memory_equal(first.bytes, second.bytes, first.size);
    buf_finish(&first);
    buf_finish(&second);
    state_free_broker(b);
    state_free_broker(again);
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
    return ((struct tensor *)map_get(&b->conns->tensors, id))->storage;
}

static void test_what_makes_no_sense(void **state)
{
    (void)state;
    struct broker *b = state_make_broker();
    ((struct tensor *)map_get(&b->conns->tensors, 3))->offset = 8;
    check_refused(b, "does not lie in its storage");
    b = state_make_broker();
    storage_of(b, 1)->size = 1 << 20; // more than the piece that it has
    check_refused(b, "its memory is not there");
    b = state_make_broker();
    struct context *ctx = map_get(&b->conns->contexts, 9);
    ctx->saved[0]->size = 4;
    check_refused(b, "what it keeps is not what its operator keeps");
    b = state_make_broker();
    ((struct shm *)map_get(&b->conns->shms, 5))->size = 4097;
    check_refused(b, "its region is not that of shared memory");
    b = state_make_broker();
    ((struct shm *)map_get(&b->conns->shms, 5))->regions[0] = 0; // a chunk
    check_refused(b, "its region is not that of shared memory");
    b = state_make_broker();
    b->next_conn_id = 0;
    check_refused(b, "in use, or of the future");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),          cmocka_unit_test(test_format),
        cmocka_unit_test(test_cut_off_and_damaged), cmocka_unit_test(test_every_byte_changed),
        cmocka_unit_test(test_what_makes_no_sense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
