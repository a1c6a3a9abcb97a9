#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "op/expr.h"
#include "base/mem.h"
#include "op/scope.h"

// An operator with one tensor x [2, 3, 4], an absent tensor m, and these names: N = 5, M = -7, R
// = 2.5, stride = [2, 3], size = None, scale = 0.5, flag = true, mode one of "alpha", "beta" =
// "beta".
struct world {
    struct op *op;
    struct scope *scope;
    struct plan_request request;
    struct env env;
    struct arena arena;
    bool backward, angle;
    struct opd_err err;
};

static void add(struct world *w, const char *name, enum symbol_kind kind, int index,
                enum expr_type type)
{
    struct symbol s = { .kind = kind, .index = index, .type = type, .line = 1 };
    struct lexer lx;
    lex_init(&lx, "t.cu", 1, "", 0, &w->err);
    strcpy(s.name, name);
    assert_true(scope_add(w->scope, &s, &lx));
}

static void add_attr(struct world *w, const char *name, enum op_attr_type type, int list,
                     struct op_value v)
{
    int i = w->op->n_attrs++;
    strcpy(w->op->attrs[i].name, name);
    w->op->attrs[i].type = type;
    w->op->attrs[i].list = list;
    w->request.attrs[i] = v;
    add(w, name, SYMBOL_ATTR, i, EXPR_INT);
}

static int set_up(void **out)
{
    static const char *words[] = { "alpha", "beta" };
    struct world *w = mem_zalloc(1, sizeof *w);
    w->op = mem_zalloc(1, sizeof *w->op);
    w->scope = mem_zalloc(1, sizeof *w->scope);
    w->op->file = "t.cu";
    scope_init(w->scope, w->op);
    add(w, "x", SYMBOL_TENSOR, TENSOR_INPUT, EXPR_INT);
    add(w, "m", SYMBOL_TENSOR, TENSOR_INPUT + 1, EXPR_INT);
    add(w, "y", SYMBOL_TENSOR, TENSOR_OUTPUT, EXPR_INT);
    add(w, "gates", SYMBOL_TENSOR, TENSOR_TEMP, EXPR_INT);
    add(w, "grad_x", SYMBOL_TENSOR, TENSOR_GRAD_INPUT, EXPR_INT);
    add(w, "N", SYMBOL_SIZE, 0, EXPR_INT);
    add(w, "M", SYMBOL_LET, 1, EXPR_INT);
    add(w, "R", SYMBOL_LET, 2, EXPR_FLOAT);
    add(w, "S", SYMBOL_PACK, 0, EXPR_INT);
    w->scope->saved[0] = true;
    add_attr(w, "stride", OP_ATTR_INT, 2, (struct op_value){ true, 2, { 2, 3 }, { 0 } });
    add_attr(w, "size", OP_ATTR_INT, 2, (struct op_value){ false, 0, { 0 }, { 0 } });
    add_attr(w, "scale", OP_ATTR_FLOAT, 0, (struct op_value){ true, 1, { 0 }, { 0.5 } });
    add_attr(w, "flag", OP_ATTR_BOOL, 0, (struct op_value){ true, 1, { 1 }, { 0 } });
    add_attr(w, "mode", OP_ATTR_STR, 0, (struct op_value){ true, 1, { 1 }, { 0 } });
    w->op->attrs[4].n_words = 2;
    w->op->attrs[4].words = words;
    w->request.op = w->op;
    w->request.inputs[0] =
        (struct tensor_desc){ .dtype = OPD_DTYPE_float16, .rank = 3, .shape = { 2, 3, 4 } };
    w->env.request = &w->request;
    w->env.wanted = 1;
    w->env.types[0] = OPD_DTYPE_float16;
    w->env.slots[0].i = 5;
    w->env.slots[1].i = -7;
    w->env.slots[2].f = 2.5;
    *out = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;
    arena_finish(&w->arena);
    free(w->scope);
    free(w->op);
    free(w);
    return 0;
}

static const struct expr *parse(struct world *w, const char *text)
{
    struct lexer lx;
    struct expr_place place = {
        .scope = w->scope,
        .arena = &w->arena,
        .in_section = true,
        .in_backward = w->backward,
        .angle_closes = w->angle,
    };
    opd_err_clear(&w->err);
    lex_init(&lx, "t.cu", 12, text, strlen(text), &w->err);
    const struct expr *e = expr_parse(&lx, &place);
    return e && lex_expect_end(&lx) ? e : NULL;
}

static void gives(struct world *w, const char *text, int64_t want)
{
    const struct expr *e = parse(w, text);
    int64_t got = 0;
    if (!e || !expr_eval_int(e, &w->env, &got, &w->err))
        fail_msg("%s: %s", text, w->err.msg);
    assert_int_equal(e->type, EXPR_INT);
    if (got != want)
        fail_msg("%s gives %lld, expected %lld", text, (long long)got, (long long)want);
}

static void gives_float(struct world *w, const char *text, double want)
{
    const struct expr *e = parse(w, text);
    union expr_value got;
    if (!e || !expr_eval(e, &w->env, &got, &w->err))
        fail_msg("%s: %s", text, w->err.msg);
    assert_int_equal(e->type, EXPR_FLOAT);
    if (got.f != want)
        fail_msg("%s gives %g, expected %g", text, got.f, want);
}

// At load.
static void refuses(struct world *w, const char *text, const char *message)
{
    if (parse(w, text))
        fail_msg("%s is taken", text);
    assert_string_equal(w->err.msg, message);
}

// In a request.
static void breaks(struct world *w, const char *text, const char *message)
{
    const struct expr *e = parse(w, text);
    union expr_value got;
    if (!e)
        fail_msg("%s: %s", text, w->err.msg);
    assert_false(expr_eval(e, &w->env, &got, &w->err));
    assert_string_equal(w->err.msg, message);
}

static void test_numbers(void **state)
{
    gives(*state, "0", 0);
    gives(*state, "9223372036854775807", INT64_MAX);
    gives(*state, "-9223372036854775807 - 1", INT64_MIN);
    gives_float(*state, "1.5", 1.5);
    gives_float(*state, ".25", 0.25);
    gives_float(*state, "2e3", 2000);
    gives_float(*state, "1.702e-1", 0.1702);
    refuses(*state, "9223372036854775808", "t.cu:12: the number 9223372036854775808 is too large");
    refuses(*state, "12ab", "t.cu:12: '12ab' is not a number");
}

static void test_precedence(void **state)
{
    gives(*state, "1 + 2 * 3", 7);
    gives(*state, "(1 + 2) * 3", 9);
    gives(*state, "10 - 3 - 2", 5);
    gives(*state, "7 / 2 * 2", 6);
    gives(*state, "-7 / 2", -3);
    gives(*state, "-7 % 3", -1);
    gives(*state, "- -3", 3);
    gives(*state, "!0 + 1", 2);
    gives(*state, "!!7", 1);
    gives(*state, "1 + 1 == 2", 1);
    gives(*state, "1 < 2 == 1", 1);
    gives(*state, "1 || 0 && 0", 1);
    gives(*state, "0 || 7", 1);
    gives(*state, "3 && 4", 1);
    gives(*state, "1 ? 2 : 0 ? 3 : 4", 2);
    gives(*state, "0 ? 2 : 0 ? 3 : 4", 4);
    gives(*state, "N + M", -2);
    gives(*state, "N != 5 || M <= -7 && N >= 5 && 3 > 2", 1);
}

static void test_floats(void **state)
{
    gives_float(*state, "R * 2", 5);
    gives_float(*state, "2 * R", 5);
    gives_float(*state, "N / 2 + 0.0", 2);
    gives_float(*state, "N / 2.0", 2.5);
    gives_float(*state, "-R", -2.5);
    gives(*state, "R > 2", 1);
    gives(*state, "2 < R && R", 1);
    gives(*state, "!R", 0);
    gives_float(*state, "flag ? 1 : 2.5", 1);
    gives_float(*state, "!flag ? 1 : 2.5", 2.5);
    gives_float(*state, "flag ? 2.5 : 1", 2.5);
    gives_float(*state, "!flag ? 2.5 : 1", 1);
    gives(*state, "floor(N * scale)", 2);
    gives(*state, "floor(-0.5)", -1);
    gives(*state, "floor(N)", 5);
    gives_float(*state, "max(N, R)", 5);
    gives_float(*state, "pow(2, 10)", 1024);
    gives_float(*state, "1 - pow(R, N)", 1 - 97.65625);
    gives_float(*state, "pow(2.25, 0.5)", 1.5);
    refuses(*state, "pow(2)", "t.cu:12: expected ',', got ')'");
    breaks(*state, "pow(-R, 0.5)", "a power that is no number in 'pow(-R, 0.5)' (t.cu:12)");
    gives_float(*state, "min(N, R)", 2.5);
    refuses(*state, "R % 2", "t.cu:12: '%' needs integers, got a float");
    refuses(*state, "cdiv(R, 2)", "t.cu:12: cdiv needs integers, got a float");
    refuses(*state, "pow2(R)", "t.cu:12: the argument of pow2() is a float, expected an integer");
    breaks(*state, "R / 0", "division by zero in 'R / 0' (t.cu:12)");
    breaks(*state, "floor(1e300)", "a float beyond int64 in 'floor(1e300)' (t.cu:12)");
}

static void test_functions(void **state)
{
    struct world *w = *state;
    gives(w, "cdiv(7, 2)", 4);
    gives(w, "cdiv(-7, 2)", -3);
    gives(w, "cdiv(8, 2)", 4);
    gives(w, "cdiv(0, 256)", 0);
    gives(w, "min(3, -4)", -4);
    gives(w, "max(3, -4)", 3);
    gives(w, "max(3, 5, 4)", 5);
    gives(w, "min(3, 5, -4, 2) + 1", -3);
    gives_float(w, "min(3, 0.5, 4)", 0.5);
    gives(w, "gcd(12, 18)", 6);
    gives(w, "gcd(-12, 0)", 12);
    gives(w, "gcd(0, 0)", 0);
    gives(w, "pow2(0)", 1);
    gives(w, "pow2(5)", 8);
    gives(w, "pow2(64)", 64);
    gives(w, "numel(x)", 24);
    gives(w, "rank(x)", 3);
    gives(w, "size(x, 0) * 100 + size(x, -1)", 204);
    gives(w, "present(x) * 10 + present(m)", 10);
    gives(w, "present(size)", 0);
    gives(w, "present(size) ? size[0] : N", 5);
    gives(w, "present(size) && size[0] > 1", 0);
    gives(w, "!present(size) || size[0] > 1", 1);
    gives(w, "is(scalar_t, float16) * 2 + is(scalar_t, float32)", 2);
    gives(w, "is(acc_t, float32)", 1);
    gives(w, "sizeof(scalar_t) * 10 + sizeof(acc_t)", 24);
    gives(w, "stride[0] * 10 + stride[1]", 23);
    gives(w, "cuda * 10 + cpu", 10);
    w->request.on_cpu = true;
    gives(w, "cuda * 10 + cpu", 1);
    gives(w, "true + true + false", 2);
    breaks(w, "pow2(9223372036854775807)", "overflow in 'pow2(9223372036854775807)' (t.cu:12)");
    breaks(w, "size(x, 3)", "a dimension beyond the rank in 'size(x, 3)' (t.cu:12)");
    breaks(w, "numel(m)", "a tensor that is None in 'numel(m)' (t.cu:12)");
    breaks(w, "size[1] + 1", "an attribute that is None in 'size[1] + 1' (t.cu:12)");
}

static void test_fits32(void **state)
{
    gives(*state, "fits32(2147483647)", 1);
    gives(*state, "fits32(2147483648)", 0);
    gives(*state, "fits32(-2147483648)", 1);
    gives(*state, "fits32(-2147483649)", 0);
    gives(*state, "fits32(1, N, 2147483648)", 0);
    gives(*state, "fits32(1, 2147483648, N)", 0);
    gives(*state, "fits32(1, N, M) + 1", 2);
    gives(*state, "!fits32(N, 2147483648) && fits32(fits32(N))", 1);
    gives(*state, "fits32(4294967296, 1 / 0)", 0); // as &&: what comes behind does not count
    refuses(*state, "fits32()", "t.cu:12: expected a number, a name or '(', got ')'");
    refuses(*state, "fits32(1, 2.5)",
            "t.cu:12: the argument of fits32() is a float, expected an integer");
    refuses(*state, "fits32(1 2)",
            "t.cu:12: expected ')' after the arguments of the function, got '2'");
}

static void test_words(void **state)
{
    gives(*state, "mode == \"beta\"", 1);
    gives(*state, "\"alpha\" == mode", 0);
    gives(*state, "mode != 'alpha' && 1", 1);
    gives(*state, "mode", 1);
    gives(*state, "mode == \"beta\" ? 2 : mode == \"alpha\" ? 1 : 0", 2);
    refuses(*state, "mode == \"bata\"",
            "t.cu:12: \"bata\" is none of the words of mode; did you mean 'beta'?");
    refuses(*state, "mode < \"beta\"", "t.cu:12: words can be compared by == and != only");
    refuses(*state, "\"beta\"",
            "t.cu:12: the string \"beta\" stands alone, expected a comparison of a "
            "str attribute with it (== or !=)");
    refuses(*state, "N == \"beta\"",
            "t.cu:12: the string \"beta\" stands alone, expected a comparison "
            "of a str attribute with it (== or !=)");
}

static void test_gradients(void **state)
{
    struct world *w = *state;
    gives(w, "wanted(gates)", 0);
    w->request.keep = true;
    gives(w, "wanted(gates)", 1);
    refuses(w, "wanted(grad_x)",
            "t.cu:12: 'grad_x' is a gradient, expected in a backward section only");
    w->backward = true;
    gives(w, "wanted(grad_x)", 1);
    gives(w, "numel(grad_x)", 24);
    w->env.wanted = 0;
    gives(w, "wanted(grad_x)", 0);
    gives(w, "numel(grad_x)", 24);
    refuses(w, "wanted(x)",
            "t.cu:12: wanted() is about gradients of inputs, in a backward section, and "
            "about saved tensors, in forward");
    refuses(w, "present(grad_x)",
            "t.cu:12: present() is about inputs and attributes; use wanted() here");
}

static void test_overflow(void **state)
{
    breaks(*state, "9223372036854775807 + 1", "overflow in '9223372036854775807 + 1' (t.cu:12)");
    breaks(*state, "-9223372036854775807 - 2", "overflow in '-9223372036854775807 - 2' (t.cu:12)");
    breaks(*state, "4611686018427387904 * 2", "overflow in '4611686018427387904 * 2' (t.cu:12)");
    breaks(*state, "(-9223372036854775807 - 1) / -1",
           "overflow in '(-9223372036854775807 - 1) / -1' (t.cu:12)");
    breaks(*state, "(-9223372036854775807 - 1) % -1",
           "overflow in '(-9223372036854775807 - 1) % -1' (t.cu:12)");
    breaks(*state, "-(-9223372036854775807 - 1)",
           "overflow in '-(-9223372036854775807 - 1)' (t.cu:12)");
    breaks(*state, "N / (M + 7)", "division by zero in 'N / (M + 7)' (t.cu:12)");
    breaks(*state, "N % 0", "division by zero in 'N % 0' (t.cu:12)");
    breaks(*state, "cdiv(N, 0)", "division by zero in 'cdiv(N, 0)' (t.cu:12)");
    gives(*state, "0 && N / 0", 0);
    gives(*state, "1 || N / 0", 1);
    gives(*state, "1 ? 3 : N / 0", 3);
}

static void test_mistakes(void **state)
{
    struct world *w = *state;
    refuses(w, "", "t.cu:12: expected a number, a name or '(', got the end of the line");
    refuses(w, "N +", "t.cu:12: expected a number, a name or '(', got the end of the line");
    refuses(w, "N N", "t.cu:12: expected the end of the line, got 'N'");
    refuses(w, "(N", "t.cu:12: expected ')', got the end of the line");
    refuses(w, "N ? 1", "t.cu:12: expected ':' of '?', got the end of the line");
    refuses(w, "N $ 1", "t.cu:12: unexpected character '$'");
    refuses(w, "strid[0]",
            "t.cu:12: 'strid' is not defined here, expected a dimension, let or "
            "attribute; did you mean 'stride'?");
    refuses(w, "Q", "t.cu:12: 'Q' is not defined here, expected a dimension, let or attribute");
    refuses(w, "cdov(1, 2)", "t.cu:12: there is no function 'cdov'; did you mean 'cdiv'?");
    refuses(w, "cdiv(1)", "t.cu:12: expected ',', got ')'");
    refuses(w, "numel(x, 1)", "t.cu:12: expected ')' after the arguments of the function, got ','");
    refuses(w, "x + 1",
            "t.cu:12: 'x' is a tensor, expected a number; use numel(), rank() or size() of it");
    refuses(w, "S", "t.cu:12: 'S' is a pack of dimensions, expected a number");
    refuses(w, "numel(N)", "t.cu:12: 'N' is a dimension, expected a tensor");
    refuses(w, "numel(y)",
            "t.cu:12: the shape of this tensor is not known yet; put its 'shape' before");
    refuses(w, "stride", "t.cu:12: stride is a list of 2; write stride[0] for an element");
    refuses(w, "stride[2]", "t.cu:12: stride[...] needs a number from 0 to 1");
    refuses(w, "is(scalar_t, half)", "t.cu:12: 'half' is no dtype");
    refuses(w, "sizeof(N)", "t.cu:12: 'N' is a dimension, expected a type variable");
    refuses(w, "\"open", "t.cu:12: a string without its closing \"");
}

static void test_angles(void **state)
{
    struct world *w = *state;
    w->angle = true;
    refuses(w, "N > 1", "t.cu:12: expected the end of the line, got '>'");
    gives(w, "(N > 1)", 1);
    gives(w, "max(N > 1, 0)", 1);
    gives(w, "1 < N", 1);
}

static void repeat(char *out, const char *piece, int n, const char *rest)
{
    out[0] = '\0';
    for (int i = 0; i < n; i++)
        strcat(out, piece);
    strcat(out, rest);
}

static void test_limits(void **state)
{
    struct world *w = *state;
    char text[8192], tail[128];
    repeat(tail, ")", 60, "");
    repeat(text, "(", 60, "1");
    gives(w, strcat(text, tail), 1);
    repeat(text, "(", 5000, "1");
    refuses(w, text, "t.cu:12: the expression is nested more than 64 deep");
    repeat(text, "-", 5000, "1");
    refuses(w, text, "t.cu:12: the expression is nested more than 64 deep");
    repeat(text, "0?1:", 1000, "1");
    refuses(w, text, "t.cu:12: the expression is nested more than 64 deep");
    repeat(text, "1+", 1000, "1");
    refuses(w, text, "t.cu:12: the expression is too long, expected at most 512 steps");
    repeat(text, "1<1+1*(", 40, "1");
    refuses(w, text, "t.cu:12: the expression is nested too deeply; use a let for a part of it");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_numbers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_precedence, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_floats, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_functions, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_fits32, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_words, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_gradients, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_overflow, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_mistakes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_angles, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_limits, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
