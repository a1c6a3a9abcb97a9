// exported: what the daemon writes of a plan is what the reader gives back; cut off, or with any
// number in it wrong, it is refused or harmless.

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/image.h"
#include "kernels/exports.h"
#include "kernels/program.h"
#include "unit/exported_walk.h"
#include "unit/op_plan.h"

static const char text[] = "//! op f(Tensor x, Tensor m) -> Tensor y\n"
                           "//! dtypes float32\n"
                           "//! shape x [N, K]\n"
                           "//! shape m [K, M]\n"
                           "//! shape y [N, M]\n"
                           "//! scratch part float32 [N]\n"
                           "//! check bad : \"row {index} of {N}\"\n"
                           "//! forward\n"
                           "//! kernel k\n"
                           "//! matmul y += x @ m\n"
                           "__global__ void k(const float *x, float *y, float *part,\n"
                           "                  opd::report_t *report, int N) {}\n";

static int write_image_file(const char *symbol, const char *payload)
{
    struct buf image = { 0 };
    image_write(&image, symbol, payload, strlen(payload));
    int fd = memfd_create("image", MFD_CLOEXEC);
    assert_int_equal(write(fd, image.bytes, image.size), (ssize_t)image.size);
    buf_finish(&image);
    return fd;
}

static struct plan *example(bool blas, int rows)
{
    struct op *op = parse_text(text);
    struct plan_request r = { .op = op, .on_cpu = true, .blas = blas };
    r.inputs[0] =
        (struct tensor_desc){ .dtype = OPD_DTYPE_float32, .rank = 2, .shape = { rows, 3 } };
    r.inputs[1] = (struct tensor_desc){ .dtype = OPD_DTYPE_float32, .rank = 2, .shape = { 3, 4 } };
    struct plan *plan = build(&r);
    op_unref(op);
    return plan;
}

// The descriptor of the plan as the daemon writes it.
static int export(struct plan *plan)
{
    struct program programs[2] = { { .image_fd = write_image_file("first",
                                                                  "payload of the first") },
                                   { .image_fd = write_image_file("_2", "payload") } };
    struct program *list[] = { &programs[0], &programs[1] };
    struct device device = { .is_cpu = true, .info = { .target = "cpu" } };
    struct version version = { .number = 7, .mark = 7 };
    struct bound_plan bound = { .device = &device, .plan = plan, .programs = list };
    opd_err_clear(&err);
    int fd = exports_write(&version, &bound, &err);
    assert_int_equal(err.code, OPD_E_none);
    close(programs[0].image_fd);
    close(programs[1].image_fd);
    return fd;
}

static void check_launch(const struct exported *x, const struct plan *plan, uint32_t i)
{
    const struct exported_step *got = &x->steps[i];
    const struct plan_step *step = &plan->steps[i];
    assert_memory_equal(got->grid, step->grid, sizeof got->grid);
    assert_memory_equal(got->block, step->block, sizeof got->block);
    assert_int_equal(got->shared_size, step->shared_size);
    assert_int_equal(got->kernel, step->kernel);
    assert_int_equal(got->args_size, step->args_size);
    assert_memory_equal(x->args + got->args, step->args, step->args_size);
    assert_int_equal(got->n_slots, step->n_slots);
    for (uint32_t k = 0; k < got->n_slots; k++) {
        assert_int_equal(x->slots[got->slots + k].operand, step->slots[k].operand);
        assert_int_equal(x->slots[got->slots + k].arg_offset, step->slots[k].arg_offset);
    }
}

static void check_matmul(const struct exported_matmul *got, const struct plan_matmul *m)
{
    assert_int_equal(got->dtype, m->dtype);
    assert_int_equal(got->result, m->result);
    assert_int_equal(got->accumulate, m->accumulate);
    assert_true(got->m == m->m && got->n == m->n && got->k == m->k);
    assert_int_equal(got->b.operand, m->b.operand);
    assert_true(got->b.size == m->b.size && got->b.stride == m->b.stride);
}

static void check_plan(const struct exported *x, const struct plan *plan)
{
    assert_int_equal(x->n_operands, plan->n_operands);
    assert_int_equal(x->n_steps, plan->n_steps);
    assert_int_equal(x->n_kernels, plan->n_kernels);
    assert_int_equal(x->head->report, plan->report);
    for (uint32_t i = 0; i < x->n_operands; i++) {
        const struct plan_operand *o = &plan->operands[i];
        assert_int_equal(x->operands[i].kind, o->kind);
        assert_int_equal(x->operands[i].index, o->index);
        assert_int_equal(x->operands[i].view_of, o->view_of);
        assert_int_equal(x->operands[i].dtype, o->desc.dtype);
        assert_int_equal(x->operands[i].rank, o->desc.rank);
        assert_int_equal(x->operands[i].size, tensor_desc_size(&o->desc));
        assert_memory_equal(x->operands[i].shape, o->desc.shape, (size_t)o->desc.rank * 8);
        assert_string_equal(x->texts + x->operands[i].name, o->name);
    }
    for (uint32_t i = 0; i < x->n_steps; i++) {
        bool copies = plan->steps[i].copies;
        assert_int_equal(x->steps[i].kind, copies ? EXPORTED_COPY : (int)plan->steps[i].kind);
        if (plan->steps[i].kind == PLAN_STEP_ZERO || copies)
            assert_int_equal(x->steps[i].operand, plan->steps[i].operand);
        if (plan->steps[i].kind == PLAN_STEP_LAUNCH)
            check_launch(x, plan, i);
        else if (plan->steps[i].kind == PLAN_STEP_MATMUL)
            check_matmul(&x->matmuls[x->steps[i].matmul], plan->steps[i].matmul);
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    for (int blas = 0; blas < 2; blas++) {
        struct plan *plan = example(blas, 5);
        int fd = export(plan);
        struct exported x;
        assert_true(exported_open(&x, fd, &err));
        close(fd);
        check_plan(&x, plan);
        exported_walk(&x);
        assert_int_equal(x.head->version, 7);
        assert_string_equal(x.texts + x.head->op, "f");
        assert_string_equal(x.texts + x.head->target, "cpu");
        assert_string_equal(x.texts + x.kernels[0].symbol, "first");
        assert_memory_equal(x.payloads + x.kernels[0].payload, "payload of the first", 20);
        assert_int_equal(x.kernels[0].payload_size, 20);
        assert_int_equal((uintptr_t)(x.payloads + x.kernels[0].payload) % 64, 0);
        struct buf said = { 0 };
        exported_explain(&x, ((uint64_t)63 << 58) | (((uint64_t)1 << 57) - 3), &said);
        assert_string_equal(buf_str(&said), "row 3 of 5");
        buf_finish(&said);
        exported_close(&x);
        exported_close(&x);
        plan_free(plan);
    }
}

static void test_nothing_to_do(void **state)
{
    (void)state;
    struct plan *plan = example(true, 0);
    int fd = export(plan);
    struct exported x;
    assert_true(exported_open(&x, fd, &err));
    check_plan(&x, plan);
    exported_walk(&x);
    exported_close(&x);
    close(fd);
    plan_free(plan);
}

// The bytes of an exported plan, in memory of exactly their size.
static uint8_t *read_all(size_t *out_size)
{
    struct plan *plan = example(true, 5);
    int fd = export(plan);
    *out_size = (size_t)lseek(fd, 0, SEEK_END);
    uint8_t *bytes = aligned_alloc(64, *out_size);
    assert_int_equal(pread(fd, bytes, *out_size, 0), (ssize_t)*out_size);
    close(fd);
    plan_free(plan);
    return bytes;
}

static bool try(const uint8_t *bytes, size_t size)
{
    struct exported x;
    opd_err_clear(&err);
    bool ok = exported_read(&x, bytes, size, &err);
    assert_int_equal(ok, err.code == OPD_E_none);
    if (ok)
        exported_walk(&x);
    return ok;
}

static void test_damage(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = read_all(&size);
    assert_true(try(bytes, size));
    for (size_t n = 0; n < size; n++)
        assert_false(try(bytes, n));
    static const uint32_t values[] = { 0, 1, 2, 7, 63, 64, 4096, INT32_MAX, UINT32_MAX };
    for (size_t at = 0; at + 4 <= size; at += 4)
        for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
            uint32_t before;
            memcpy(&before, bytes + at, 4);
            memcpy(bytes + at, &values[v], 4);
            try(bytes, size);
            memcpy(bytes + at, &before, 4);
        }
    free(bytes);
}

static void test_other_layouts(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = read_all(&size);
    ((struct exported_header *)(void *)bytes)->layout++;
    assert_false(try(bytes, size));
    assert_non_null(strstr(err.msg, "its layout is 3, this client reads 2; update the older one"));
    free(bytes);
}

static void test_descriptors(void **state)
{
    (void)state;
    size_t size;
    uint8_t *bytes = read_all(&size);
    struct exported x;
    int fd = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING), ends[2];
    assert_int_equal(write(fd, bytes, size), (ssize_t)size);
    assert_int_equal(pipe(ends), 0);
    for (int i = 0; i < 3; i++) {
        opd_err_clear(&err);
        assert_false(exported_open(&x, i == 0 ? fd : i == 1 ? ends[0] : -1, &err));
        assert_int_equal(err.code, OPD_E_malformed_message);
        assert_null(x.mapping);
    }
    close(fd);
    close(ends[0]);
    close(ends[1]);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_nothing_to_do),
        cmocka_unit_test(test_damage),      cmocka_unit_test(test_other_layouts),
        cmocka_unit_test(test_descriptors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
