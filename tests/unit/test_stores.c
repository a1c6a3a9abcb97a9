// stores, and what becomes of it in plans: results that a kernel may read before it has written
// them begin with zeros, the others cost nothing.

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/source.h"
#include "op/plan.h"
#include "op/stores.h"
#include "unit/op_plan.h"

static bool stores(const char *body)
{
    return stores_only(body, strlen(body), "y", body, strlen(body));
}

static void test_what_only_stores(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "",
        "y[i] = x[i];",
        "if (i < n) y[ i ]= x[i] + x[n - 1];",
        "y[b][c][t] = 0; y [at(i)] = 1;",
        "y[idx[i] + (n - 1)].x = v.y; p->y += 1; blockIdx.y;",
        "opd::store(y + i, v); opd::store_vec( y + first, v); opd::store(&y[i], v);",
        "if (opd::is_aligned(y, 16)) y[0] = 1;",
        "if (y) y[i] = 1; if (a && y) return; if (!y || n) y[i] = 2; while (y && n);",
        "if (y == nullptr) return; y[i] = y ? 1 : 2; is_bias ? !x : !y;",
        "my[i] += 1; y2 += y_; y[i] = 1;",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        if (!stores(bodies[i]))
            fail_msg("'%s' only stores", bodies[i]);
}

static void test_what_may_read(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "y[i] += x[i];",
        "y[i]++;",
        "++y[i];",
        "y[i] = y[i] + x[i];",
        "y[y[0]] = 1;",
        "y[i] == 1;",
        "if (y[i]) return;",
        "if (a && y[i]) return;",
        "if (!y[i] || !*y) return;",
        "z = *y == 2;",
        "atomicAdd(&y[i], x[i]);",
        "atomicAdd(y + i, x[i]);",
        "*(y + i) += 1;",
        "*y += 1;",
        "scalar_t *p = y + i; *p += 1;",
        "scalar_t &r = y[i]; r += x;",
        "add(y, i);",
        "opd::load(y + i);",
        "my_opd::store(y + i, 1);",
        "store(y + i, 1);",
        "opd::store(x + y[i], 1);",
        "reinterpret_cast<float4 *>(y)[i] = v;",
        "auto f = [&](int i) { y[i] -= 1; };",
        "y[i].x += 1;",
        "y[i].add(1);",
        "int n = y.size(0);",
        "y[i] = 1; g(n, y);",
        "y[",
        "y",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        if (stores(bodies[i]))
            fail_msg("'%s' may read", bodies[i]);
}

static bool stores_in(const char *file)
{
    return stores_only("y[0] = 1;", 9, "y", file, strlen(file));
}

static void test_macros(void **state)
{
    (void)state;
    assert_false(stores_in("#define ADD(v) y[i] += v\n"));
    assert_false(stores_in("  # define Y \\\n  y[i]\n"));
    assert_false(stores_in("#define F(x) (x + \\\n y[1])"));
    assert_true(stores_in("#define MIN(x, y) ((x) < (y) ? (x) : (y))\n"));
    assert_true(stores_in("#define my y2\n// define y\nint y; #defined y"));
}

static bool asks(const char *body)
{
    static const char code[] =
        "template <class T, int N> __device__ void put(T *__restrict__ p, int i, T v) { p[i] = v; "
        "}\n"
        "void put_if(float *p, float v) { if (p) *p = v; }\n"
        "void twice(std::pair<int, int> n, float *q = 0, int i) { put(q, i, 2.f); put(q, i); }\n"
        "void again(float *y) { again(y); }\n"
        "void over(float *y) { *y = 1; } void over(double *y) { if (y) *y = 1; }\n"
        "void by_name(float *) { } void pair(int a[2], float b[]) { b[a[0]] = 1; }\n"
        "int declared(float *y);\n";
    return stores_asks(body, strlen(body), "y", code, strlen(code));
}

static void test_what_asks(void **state)
{
    (void)state;
    static const char *const asking[] = {
        "",
        "if (y) y[i] = v;",
        "y ? 1 : 2;",
        "unknown(y, i, v);",
        "T *p = y;",
        "T *p = y; put_if(p, 1);",
        "if (n && y) *y = v;",
        "put(a, y, v);", // another parameter, which is no pointer
        "put_if(y, v);",
        "twice(y, i, v);",
        "y[i] = 1; f(put_if(y, v));",
        "again(y);",
        "over(y);",
        "by_name(y);",
        "declared(y);",
        "return y;",
        "P p{y};",
        "[&](float *) {}(y);",
    };
    static const char *const using[] = {
        "y[i] = v;",
        "put(y + i, v);",
        "if (threadIdx.x == 0) *y = sum;",
        "atomicAdd(y, v);",
        "gpuAtomicAdd( &y[i], v);",
        "reinterpret_cast<float4 *>(y)[i] = v;",
        "((float4 *)y)[i] = v;",
        "p.y; *y += v; y [i] = 1;",
        "put(y, i, v);",
        "put<scalar_t, 3>( y , i, v);",
        "T *p = y; p[i] = v;",
        "auto p = y; put(p, 1, 2);",
        "f(g(a, b), h[1, 2]); twice(f(1, 2), y, i);",
        "pair(a, y);",
        "opd::store(y, v); fastAtomicAdd(y, i, n, v, true);",
    };
    for (size_t i = 0; i < sizeof asking / sizeof *asking; i++)
        if (!asks(asking[i]))
            fail_msg("'%s' may ask", asking[i]);
    for (size_t i = 0; i < sizeof using / sizeof *using; i++)
        if (asks(using[i]))
            fail_msg("'%s' does not ask", using[i]);
}

static int count_zeros(const struct plan *plan, enum plan_operand_kind kind)
{
    int n = 0;
    for (int i = 0; i < plan->n_steps; i++)
        n += plan->steps[i].kind == PLAN_STEP_ZERO &&
             plan->operands[plan->steps[i].operand].kind == kind;
    return n;
}

// Outputs that a forward of these kernels begins with as zeros.
static int zeros_of(const char *rules, const char *sections)
{
    struct op *op = small(rules, sections);
    struct plan_request request = ask(op, 1, 8, 0, 8);
    request.keep = true;
    struct plan *plan = build(&request);
    int n = count_zeros(plan, PLAN_OUTPUT) + 10 * count_zeros(plan, PLAN_SAVED) +
            100 * count_zeros(plan, PLAN_SCRATCH);
    assert_true(n == 0 || plan->steps[0].kind == PLAN_STEP_ZERO);
    plan_free(plan);
    op_unref(op);
    return n;
}

// Each alias has ten that are its own: they are followed up to a bound.
static void test_what_is_too_much_asks(void **state)
{
    char text[15 * 10 * 20], *p = text;
    (void)state;
    for (int i = 0; i < 150; i++)
        p += sprintf(p, "T *%c = %c;", 'a' + i / 10, i < 10 ? 'y' : 'a' + i / 10 - 1);
    strcpy(p, "o[0] = 1;");
    assert_true(stores_asks(text, strlen(text), "y", text, strlen(text)));
}

#define ADD "__global__ void add(const scalar_t *x, scalar_t *y) { y[0] += x[0]; }\n"
#define SET "__global__ void set(const scalar_t *x, scalar_t *y) { y[0] = x[0]; }\n"
#define TEMP "__global__ void sum(scalar_t *t, scalar_t *y) { t[0] += 1; y[0] = t[0]; }\n"

#define BRANCHES                                                                                   \
    "#ifdef A\n__global__ void k(const scalar_t *x, scalar_t *y) { y[0] = x[0]; }\n"               \
    "#else\n__global__ void k(const scalar_t *x, scalar_t *y) { y[0] += x[0]; }\n#endif\n"
#define DECLARED "__global__ void add(const scalar_t *x, scalar_t *y);\n"

static void test_plans(void **state)
{
    (void)state;
    assert_int_equal(zeros_of(SHAPES, "//! forward\n//! kernel add\n" ADD), 1);
    assert_int_equal(zeros_of(SHAPES, "//! forward\n//! kernel set\n" SET), 0);
    assert_int_equal(zeros_of(SHAPES "//! empty y\n", "//! forward\n//! kernel add\n" ADD), 0);
    assert_int_equal(zeros_of(SHAPES, "//! forward\n//! zero y\n//! kernel add\n" ADD), 1);
    assert_int_equal(zeros_of(SHAPES, "//! forward\n//! kernel set\n//! kernel add\n" ADD SET), 0);
    assert_int_equal(zeros_of(SHAPES, "//! forward\n//! kernel add\n//! kernel set\n" ADD SET), 1);
    assert_int_equal(zeros_of(SHAPES, "//! forward\n//! kernel add\n//! kernel add\n" ADD), 1);
    assert_int_equal(zeros_of(SHAPES, "//! forward\n//! kernel set\n//! when 0\n//! kernel add\n"
                                      "//! otherwise\n" ADD SET),
                     1);
    // Either branch of an #if may be the one that is compiled; a declaration says nothing.
    assert_int_equal(zeros_of(SHAPES, "//! forward\n//! kernel k\n" BRANCHES), 1);
    assert_int_equal(zeros_of(SHAPES, "//! forward\n//! kernel add\n" DECLARED ADD), 1);
    // Of saved tensors the same; scratch is as it says.
    const char *sum = "//! forward\n//! kernel sum\n" TEMP;
    assert_int_equal(zeros_of(SHAPES "//! saved t [4]\n", sum), 10);
    assert_int_equal(zeros_of(SHAPES "//! saved t [4]\n//! empty t\n", sum), 0);
    assert_int_equal(zeros_of(SHAPES "//! scratch t [4]\n", sum), 0);
    // One that only reads it.
    assert_int_equal(
        zeros_of(SHAPES, "//! forward\n//! kernel look\n//! kernel set\n" SET
                         "__global__ void look(const scalar_t *y, scalar_t *x) { x[0] = y[0]; }\n"),
        1);
}

static void test_gradients(void **state)
{
    (void)state;
    struct op *op = small(SHAPES, "//! forward\n//! kernel set\n//! backward grad_x\n"
                                  "//! kernel back\n" SET
                                  "__global__ void back(const scalar_t *grad_y, scalar_t *grad_x)\n"
                                  "{ atomicAdd(&grad_x[0], grad_y[0]); }\n");
    struct plan_request request = ask(op, 1, 8, 0, 8);
    request.direction = PLAN_BACKWARD;
    request.wanted = 1;
    struct plan *plan = build(&request);
    assert_int_equal(count_zeros(plan, PLAN_GRAD_INPUT), 1);
    plan_free(plan);
    op_unref(op);
}

static void test_refusals(void **state)
{
    (void)state;
    refuse_text("//! op f(Tensor x) -> Tensor y\n//! dtypes float32\n//! shape x [N]\n"
                "//! shape y [N]\n//! empty x\n",
                "t.cu:5: 'x' is no result, expected an output, saved or the gradient of an input");
}

// What products write in parts, as a matrix() names them.
static bool is_part(const char *file, const char *operand)
{
    return strcmp(file, "lltm_sequence.cu") == 0 && strcmp(operand, "grad_weights") == 0;
}

// An operator of the repository, with each dtype, on both devices: nothing is zeroed in vain.
static int look_at(struct op *op, const char *file)
{
    enum opd_dtype dtypes[OPD_DTYPE_COUNT];
    int n = 0, n_dtypes = plan_example_dtypes(op, true, dtypes);
    struct plan_request request;
    for (int d = 0; d < n_dtypes; d++)
        for (int k = 0; plan_example(op, k, dtypes[d], &request); k++)
            for (int way = 0; way < 8; way++, n++) {
                request.on_cpu = way & 1;
                request.keep = way & 2 && op->has_backward;
                request.blas = way & 4;
                request.direction = way & 2 && op->has_backward ? PLAN_BACKWARD : PLAN_FORWARD;
                request.wanted = plan_gradients(&request);
                if (request.direction == PLAN_BACKWARD && !request.wanted)
                    continue;
                struct plan *plan = build(&request);
                for (int i = 0; i < plan->n_steps; i++)
                    if (plan->steps[i].kind == PLAN_STEP_ZERO &&
                        (int)plan->steps[i].operand != plan->report &&
                        !is_part(file, plan->operands[plan->steps[i].operand].name))
                        fail_msg("%s: %s is zeroed, example %d, way %d", file,
                                 plan->operands[plan->steps[i].operand].name, k + 1, way);
                plan_free(plan);
            }
    return n;
}

static void test_operators_of_the_repository(void **state)
{
    (void)state;
    DIR *dir = opendir("kernels_src");
    assert_non_null(dir);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        const char *dot = strrchr(e->d_name, '.');
        if (!dot || strcmp(dot, ".cu") != 0)
            continue;
        char path[512];
        size_t size;
        snprintf(path, sizeof path, "kernels_src/%s", e->d_name);
        char *text = source_read_file(path, &size, &err);
        struct source *source = text ? source_of_text("kernels_src", e->d_name, text, size, &err)
                                     : NULL;
        struct op *op = source ? op_parse_whole(e->d_name, text, size, source->text, &err) : NULL;
        if (!op)
            fail_msg("%s", err.msg);
        source_free(source);
        n += look_at(op, e->d_name);
        op_unref(op);
        free(text);
    }
    closedir(dir);
    assert_true(n > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_only_stores),
        cmocka_unit_test(test_what_may_read),
        cmocka_unit_test(test_what_asks),
        cmocka_unit_test(test_what_is_too_much_asks),
        cmocka_unit_test(test_macros),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_operators_of_the_repository),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
