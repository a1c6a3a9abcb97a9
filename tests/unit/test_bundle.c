// A fault that is kept: what was written is read back, and nothing else is taken.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "op/bundle.h"
#include "unit/op_text.h"

#define TEXT                                                                                       \
    "//! op f(Tensor x, Tensor[] l, Tensor? b=None, *, int[2] k=1, float z=0.5, float? none=1.0, " \
    "bool on=False, str how=\"a\") -> Tensor y\n"                                                  \
    "//! dtypes float32 float64\n//! words how a long\n//! strided x\n"                            \
    "//! shape x b [N, M]\n//! shape l [K]\n//! shape y [N, M]\n"                                  \
    "//! forward\n//! kernel f\n"                                                                  \
    "__global__ void f(const float *x, float *y, float z, bool on, int how) {}\n"

static struct plan_request request;
static struct plan_lists lists;
static const struct tensor_desc members[2] = { { OPD_DTYPE_float32, .rank = 1, .shape = { 3 } },
                                               { OPD_DTYPE_float32, .rank = 1, .shape = { 0 } } };
static const struct tensor_desc *const of_l[2] = { &members[0], &members[1] };

static void fill(struct op *op)
{
    request = (struct plan_request){ .op = op, .direction = PLAN_BACKWARD, .wanted = 0x80000001u };
    memset(lists.n, -1, sizeof lists.n);
    lists.n[1] = 2;
    lists.of[1] = of_l;
    request.lists = &lists;
    request.inputs[0] = (struct tensor_desc){ OPD_DTYPE_float64, 2, { 4, 5 }, true, { 0, 1 } };
    request.inputs[1].dtype = OPD_DTYPE_float32;
    for (int i = 0; i < op->n_attrs; i++)
        request.attrs[i] = op->attrs[i].value;
    request.attrs[0].i[1] = -7;
    request.attrs[1].f[0] = 0.1;
    request.attrs[2].present = false;
    request.attrs[3].i[0] = 1;
    request.attrs[4].i[0] = 1;
}

static struct buf write_one(void)
{
    static const uint8_t bytes[5] = { 1, '\n', 0, 255, 5 };
    struct bundle_tensor tensors[2] = { { PLAN_INPUT, 0, 5, bytes },
                                        { PLAN_GRAD_OUTPUT, PLAN_MEMBER, 2, bytes } };
    struct bundle b = { .time = 12.5,
                        .device = "cuda:0",
                        .op = "f",
                        .file = "a b.cu",
                        .version = 3,
                        .message = "two\nlines",
                        .source = TEXT,
                        .source_size = strlen(TEXT),
                        .whole = "whole",
                        .whole_size = 5,
                        .n_tensors = 2,
                        .tensors = tensors,
                        .request = &request };
    struct buf out = { 0 };
    bundle_write(&b, &out);
    return out;
}

static void test_round(void **state)
{
    (void)state;
    struct op *op = parse_text(TEXT);
    struct opd_err err = { 0 };
    struct bundle b;
    fill(op);
    struct buf file = write_one();
    assert_true(bundle_read(&b, file.bytes, file.size, &err));
    assert_true(b.time == 12.5 && b.version == 3 && b.size == file.size);
    assert_string_equal(b.device, "cuda:0");
    assert_string_equal(b.file, "a b.cu");
    assert_string_equal(b.message, "two lines");
    assert_memory_equal(b.source, TEXT, b.source_size);
    assert_memory_equal(b.whole, "whole", b.whole_size);
    assert_int_equal(b.n_tensors, 2);
    assert_int_equal(b.tensors[1].index, PLAN_MEMBER);
    assert_memory_equal(b.tensors[0].bytes, "\1\n\0\377\5", 5);
    assert_true(bundle_read_request(&b, op, &err));
    struct buf before = { 0 }, after = { 0 };
    plan_signature(&request, UINT32_MAX, &before);
    plan_signature(b.request, UINT32_MAX, &after);
    assert_true(before.size == after.size && memcmp(before.bytes, after.bytes, after.size) == 0);
    assert_true(plan_same_numbers(&request, b.request) && b.request->wanted == request.wanted);
    assert_true(tensor_desc_same(b.request->lists->of[1][0], &members[0]));
    buf_finish(&before);
    buf_finish(&after);
    bundle_finish(&b);
    buf_finish(&file);
    op_unref(op);
}

// Cut off anywhere, longer, or with any byte changed: refused, or read, and never past its end.
static void test_damage(void **state)
{
    (void)state;
    struct op *op = parse_text(TEXT);
    fill(op);
    struct buf file = write_one();
    for (size_t at = 0; at < file.size; at++)
        for (int change = 0; change < 3; change++) {
            struct bundle b;
            struct opd_err err = { 0 };
            size_t size = change ? file.size : at;
            uint8_t *copy = mem_alloc(size + !size);
            memcpy(copy, file.bytes, size);
            if (change)
                copy[at] = change == 1 ? '9' : ' ';
            bool ok = bundle_read(&b, copy, size, &err);
            assert_true(ok || err.code == OPD_E_invalid_argument);
            assert_false(ok && !change);
            if (ok && !bundle_read_request(&b, op, &err))
                assert_int_equal(err.code, OPD_E_invalid_argument);
            bundle_finish(&b);
            opd_err_clear(&err);
            free(copy);
        }
    buf_finish(&file);
    op_unref(op);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_round),
                                        cmocka_unit_test(test_damage) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
