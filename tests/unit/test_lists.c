// Operators of lists: what the header says of one tensor, a plan holds for all.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/mem.h"
#include "unit/op_plan.h"

enum { MOST = 400 };

#define AXPY                                                                                       \
    "//! op axpy(Tensor(a!)[] ys, Tensor[] xs, Tensor? b=None, *, float a=2.0) -> ()\n"            \
    "//! dtypes float32 float64\n"                                                                 \
    "//! require a >= 0 && numel(ys) != 7 : \"a is {a}, ys is {ys}\"\n"                            \
    "//! formula ys = ys + a * xs + (present(b) ? b : 0)\n"                                        \
    "//! example ys=[[4],[5,6]] xs=[[4],[5,6]] a=0.5\n"

#define SCALE                                                                                      \
    "//! op scale(Tensor[] xs) -> Tensor[] ys\n//! dtypes float32\n//! shape xs ys [...S]\n"       \
    "//! scratch t [4]\n//! forward\n//! kernel whole\n//! kernel each threads numel(xs)\n"        \
    "__global__ void whole(float *t) {}\n"                                                         \
    "__global__ void each(const float *xs, float *ys, const float *t) {}\n"

// Lists of vectors that have so many elements.
struct lists {
    struct plan_request request;
    struct plan_lists lists;
    struct tensor_desc descs[2][MOST];
    const struct tensor_desc *at[2][MOST];
};

static struct lists *make(const struct op *op, int n_lists, int n, const int64_t *sizes)
{
    struct lists *l = mem_zalloc(1, sizeof *l);
    l->request = (struct plan_request){ .op = op, .lists = &l->lists };
    memset(l->lists.n, -1, sizeof l->lists.n);
    for (int i = 0; i < op->n_attrs; i++)
        l->request.attrs[i] = op->attrs[i].value;
    for (int i = 0; i < n_lists; i++) {
        l->request.inputs[i].dtype = OPD_DTYPE_float32;
        l->lists.n[i] = n;
        l->lists.of[i] = l->at[i];
        for (int k = 0; k < n; k++) {
            l->descs[i][k] = (struct tensor_desc){ OPD_DTYPE_float32, .rank = 1,
                                                   .shape = { sizes[k] } };
            l->at[i][k] = &l->descs[i][k];
        }
    }
    return l;
}

static uint32_t first_block(const struct plan_step *s, uint32_t at)
{
    uint32_t first;
    memcpy(&first, s->args + at, sizeof first);
    return first;
}

static void test_one_launch(void **state)
{
    (void)state;
    struct op *op = parse_text(AXPY);
    struct lists *l = make(op, 2, 3, (int64_t[]){ 3000, 0, 5 });
    struct plan *plan = build(&l->request);
    assert_int_equal(plan->n_steps, 1);
    // Two tensors and a number of elements for each, 144 of them; then their first blocks.
    assert_string_equal(plan->kernels[0].expr,
                        "opd::formula_maps<axpy_forward, 4, 144, 2, 0, 1, 0>");
    const struct plan_step *s = &plan->steps[0];
    assert_int_equal(s->grid[0], 6 + 1); // 128 threads, 4 elements each
    assert_int_equal(s->n_slots, 4);     // what is empty takes no part
    assert_int_equal(plan->kernels[0].params[0].size, s->args_size);
    uint32_t each = s->slots[0].arg_offset, first = each + 144 * 24;
    assert_int_equal(s->slots[2].arg_offset, each + 24);
    assert_int_equal(arg(plan, 0, each + 16, 8), 3000);
    assert_int_equal(arg(plan, 0, each + 24 + 16, 8), 5);
    assert_int_equal(first_block(s, first), 0);
    assert_int_equal(first_block(s, first + 4), 6);
    assert_int_equal(first_block(s, first + 4 * 144), 2); // how many
    const struct plan_operand *o = &plan->operands[s->slots[3].operand];
    assert_int_equal(plan_index(o->index), 1);
    assert_int_equal(plan_member(o->index), 2);
    assert_string_equal(o->name, "xs");
    plan_free(plan);
    free(l);
    op_unref(op);
}

static void test_many(void **state)
{
    (void)state;
    struct op *op = parse_text(AXPY);
    int64_t sizes[MOST];
    for (int i = 0; i < MOST; i++)
        sizes[i] = i + 8;
    struct lists *l = make(op, 2, MOST, sizes);
    struct plan *plan = build(&l->request);
    assert_int_equal(plan->n_steps, 3); // of 144, 144 and 112
    assert_int_equal(plan->n_kernels, 1);
    assert_int_equal(plan->n_operands, 2 * MOST);
    for (int i = 0; i < 3; i++)
        assert_true(plan->steps[i].args_size <= 4096);
    assert_int_equal(plan->steps[2].n_slots, 2 * 112);
    plan_free(plan);
    l->request.long_args = true;
    plan = build(&l->request);
    assert_int_equal(plan->n_steps, 2); // of 256, which a checked build has slots for, and 144
    assert_string_equal(plan->kernels[0].expr,
                        "opd::formula_maps<axpy_forward, 4, 256, 2, 0, 1, 0>");
    assert_string_equal(plan->kernels[1].expr,
                        "opd::formula_maps<axpy_forward, 4, 144, 2, 0, 1, 0>");
    assert_int_equal(plan->kernels[0].params[0].size, plan->steps[0].args_size);
    assert_int_equal(plan->steps[0].n_slots, 2 * 256);
    plan_free(plan);
    free(l);
    op_unref(op);
}

// Where a tensor broadcasts to some of a list in another way than to others: other kernels.
static void test_different_kernels(void **state)
{
    (void)state;
    struct op *op = parse_text(AXPY);
    struct lists *l = make(op, 2, 3, (int64_t[]){ 6, 1, 6 });
    l->request.inputs[2] = (struct tensor_desc){ OPD_DTYPE_float32, .rank = 1, .shape = { 1 } };
    for (int i = 0; i < 2; i++) {
        l->descs[i][0].rank = 2;
        l->descs[i][0].shape[1] = 4;
    }
    struct plan *plan = build(&l->request);
    assert_int_equal(plan->n_steps, 3);
    assert_int_equal(plan->n_kernels, 2);
    int slots = 0;
    for (int i = 0; i < plan->n_steps; i++)
        slots += plan->steps[i].n_slots;
    assert_int_equal(slots, 9); // b each time
    plan_free(plan);
    free(l);
    op_unref(op);
}

static void test_kernels(void **state)
{
    (void)state;
    struct op *op = parse_text(SCALE);
    struct lists *l = make(op, 1, 3, (int64_t[]){ 300, 0, 5 });
    struct plan *plan = build(&l->request);
    // `whole` has nothing of a list and runs once, before all of `each`.
    assert_int_equal(plan->n_steps, 3);
    assert_string_equal(plan->kernels[plan->steps[0].kernel].expr, "whole");
    assert_string_equal(plan->kernels[plan->steps[1].kernel].expr, "each");
    assert_int_equal(plan->steps[1].grid[0], 2);
    assert_int_equal(plan->steps[2].grid[0], 1);
    for (int k = 0; k < 3; k++) { // results come first
        assert_int_equal(plan->operands[k].kind, PLAN_OUTPUT);
        assert_int_equal(plan->operands[k].index, PLAN_MEMBER * k);
        assert_int_equal(plan->operands[k].desc.shape[0], l->descs[0][k].shape[0]);
    }
    plan_free(plan);
    free(l);
    op_unref(op);
}

static void test_empty(void **state)
{
    (void)state;
    struct op *op = parse_text(AXPY);
    struct lists *l = make(op, 2, 0, NULL);
    struct plan *plan = build(&l->request);
    assert_int_equal(plan->n_steps, 0);
    plan_free(plan);
    free(l);
    op_unref(op);
}

static void test_refused(void **state)
{
    (void)state;
    struct op *op = parse_text(AXPY);
    struct lists *l = make(op, 2, 3, (int64_t[]){ 4, 5, 6 });
    l->lists.n[1] = 2;
    refuse(&l->request, "axpy: xs has 2 tensors, ys has 3; expected as many in each list");
    l->lists.n[1] = -1;
    refuse(&l->request, "axpy: xs is missing, expected a list of tensors");
    l->lists.n[1] = 3;
    l->descs[0][2].shape[0] = 7;
    refuse(&l->request, "axpy: at [2]: a is 2, ys is float32 [7]");
    l->descs[0][2].shape[0] = 3;
    refuse(&l->request,
           "axpy: at [2]: xs is [6], expected a shape that broadcasts with ys, which is [3]");
    l->lists.n[0] = l->lists.n[1] = PLAN_MAX_MEMBERS + 1;
    refuse(&l->request, "axpy: ys has 4097 tensors, expected at most 4096");
    free(l);
    op_unref(op);
}

// Each input is repeated along another dimension, of 2^32 elements: the arguments of one tensor
// leave no room for a second one's pointers, or not even for its own.
static void test_no_room(void **state)
{
    (void)state;
    for (int n = 26; n <= 28; n++) {
        struct buf text = { 0 };
        buf_append_str(&text, "//! op sums(");
        for (int i = 0; i < n; i++)
            buf_printf(&text, "Tensor[] x%d, ", i);
        buf_append_str(&text,
                       "*, float a=2.0) -> Tensor[] ys\n//! dtypes float32\n//! formula ys = a");
        for (int i = 0; i < n; i++)
            buf_printf(&text, " + x%d", i);
        struct op *op = parse_text(buf_str(&text));
        struct lists *l = make(op, 0, 1, NULL);
        struct tensor_desc descs[28];
        const struct tensor_desc *at[28];
        for (int i = 0; i < n; i++) {
            descs[i] = (struct tensor_desc){ OPD_DTYPE_float32, .rank = 16 };
            for (int d = 0; d < 16; d++)
                descs[i].shape[d] = d == i % 16 || (i >= 16 && d == (i + 2) % 16) ? 1 : 4;
            at[i] = &descs[i];
            l->request.inputs[i].dtype = OPD_DTYPE_float32;
            l->lists.n[i] = 1;
            l->lists.of[i] = &at[i];
        }
        if (n == 26)
            plan_free(build(&l->request));
        else
            refuse(&l->request, "sums: the formulas take more than 4096 bytes of parameters for "
                                "one tensor");
        free(l);
        op_unref(op);
        buf_finish(&text);
    }
}

static void test_signatures(void **state)
{
    (void)state;
    struct op *op = parse_text(AXPY);
    struct lists *l = make(op, 2, 2, (int64_t[]){ 4, 5 });
    struct buf one = { 0 }, other = { 0 };
    plan_signature(&l->request, UINT32_MAX, &one);
    struct plan_lists *copy = plan_lists_copy(&l->lists);
    l->request.lists = copy;
    plan_signature(&l->request, UINT32_MAX, &other);
    assert_int_equal(one.size, other.size);
    assert_memory_equal(one.bytes, other.bytes, one.size);
    l->descs[0][1].shape[0] = 6; // the copy has its own
    other.size = 0;
    plan_signature(&l->request, UINT32_MAX, &other);
    assert_memory_equal(one.bytes, other.bytes, one.size);
    l->request.lists = &l->lists;
    other.size = 0;
    plan_signature(&l->request, UINT32_MAX, &other);
    assert_true(one.size != other.size || memcmp(one.bytes, other.bytes, one.size) != 0);
    buf_finish(&one);
    buf_finish(&other);
    free(copy);
    free(l);
    op_unref(op);
}

#define HEAD(op) "//! op " op "\n//! dtypes float32\n"
#define KERNEL "__global__ void k(const float *xs, float *ys) {}\n"

static void test_mistakes(void **state)
{
    (void)state;
    refuse_text(HEAD("f(Tensor x) -> Tensor[] ys"),
                "t.cu:1: 'ys' is a list, but no input is; expected one that it is as long as");
    refuse_text(HEAD("f(Tensor[ xs) -> ()"),
                "t.cu:1: expected ']': a list of tensors, as many as come, got 'xs'");
    refuse_text(HEAD("f(Tensor(a)[] xs) -> Tensor(a)"),
                "t.cu:1: a list of views, expected Tensor[] or Tensor(a!)[]");
    refuse_text(HEAD("f(Tensor[] xs) -> Tensor y") "//! formula y = xs\n",
                "t.cu:1: formulas of lists make 'y', which is a single tensor; expected a list");
    refuse_text(HEAD("f(Tensor[] xs) -> Tensor[] ys") "//! formula ys = xs - sum(xs, -1)\n",
                "t.cu:1: sums over rows beside lists of tensors, which have none yet");
    refuse_text(HEAD("f(Tensor[] xs) -> Tensor[] ys") "//! shape xs ys [N]\n//! forward\n//! "
                                                      "formula ys = xs\n",
                "t.cu:1: 'formula', 'sum' and 'fill' in a section beside lists of tensors, which "
                "have none yet");
    refuse_text(HEAD("f(Tensor[] xs) -> ()") "//! shape xs [N]\n//! example xs=[4]\n",
                "t.cu:4: expected a shape, [2, 3], got '4'");
    refuse_text(HEAD("f(Tensor[] xs) -> ()") "//! shape xs [N]\n//! example xs=[[4]] xs is [1]\n",
                "t.cu:4: 'xs' is a list, expected a range for all its tensors: xs in 0..3");
    refuse_text(HEAD("f(Tensor[] xs) -> Tensor y") "//! shape xs [N]\n//! shape y [N]\n//! example "
                                                   "xs=[[4],[5]]\n//! forward\n"
                                                   "//! kernel k\n//! bind ys = y\n" KERNEL,
                "t.cu:5: the example does not plan: f: y would be float32 [4] at [0] of the lists, "
                "float32 [5] at [1]; expected one shape");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_launch),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_different_kernels),
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_signatures),
        cmocka_unit_test(test_mistakes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
