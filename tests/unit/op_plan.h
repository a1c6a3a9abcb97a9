#pragma once

// For the tests of plans: makes one or expects its refusal, and looks into it. Include after
// cmocka.h.

#include "unit/op_text.h"

static struct opd_err err;

static struct plan *build(const struct plan_request *request)
{
    opd_err_clear(&err);
    struct plan *plan = plan_build(request, &err);
    if (!plan)
        fail_msg("%s", err.msg);
    return plan;
}

__attribute__((unused)) static void refuse(const struct plan_request *request, const char *message)
{
    opd_err_clear(&err);
    assert_null(plan_build(request, &err));
    assert_int_equal(err.code, OPD_E_invalid_argument);
    assert_string_equal(err.msg, message);
}

__attribute__((unused)) static const struct plan_operand *operand(const struct plan *plan,
                                                                  const char *name)
{
    for (int i = 0; i < plan->n_operands; i++)
        if (strcmp(plan->operands[i].name, name) == 0)
            return &plan->operands[i];
    return NULL;
}

// The operand that the launch's pointer at this offset names, "" if none.
__attribute__((unused)) static const char *slot(const struct plan *plan, int step, uint32_t offset)
{
    for (int i = 0; i < plan->steps[step].n_slots; i++)
        if (plan->steps[step].slots[i].arg_offset == offset)
            return plan->operands[plan->steps[step].slots[i].operand].name;
    return "";
}

__attribute__((unused)) static int64_t arg(const struct plan *plan, int step, uint32_t offset,
                                           size_t size)
{
    int64_t value = 0;
    assert_true(offset + size <= plan->steps[step].args_size);
    memcpy(&value, plan->steps[step].args + offset, size);
    return value;
}

// x [...S], one more tensor m [P], attributes, and whatever else the test says.
__attribute__((unused)) static struct op *small(const char *rules, const char *sections)
{
    char text[4096];
    snprintf(text, sizeof text,
             "//! op f(Tensor x, Tensor m, *, int n=1, float a=0.5, int? o=None, str s=\"one\") -> "
             "Tensor y\n"
             "//! dtypes float16 float32 int32\n//! words s one two\n%s\n%s",
             rules, sections);
    return parse_text(text);
}

__attribute__((unused)) static struct plan_request ask(const struct op *op, int rank, int64_t d0,
                                                       int64_t d1, int64_t m)
{
    struct plan_request r = { .op = op };
    r.inputs[0] =
        (struct tensor_desc){ .dtype = OPD_DTYPE_float32, .rank = rank, .shape = { d0, d1 } };
    r.inputs[1] = (struct tensor_desc){ .dtype = OPD_DTYPE_float32, .rank = 1, .shape = { m } };
    for (int i = 0; i < op->n_attrs; i++)
        r.attrs[i] = op->attrs[i].value;
    return r;
}

#define SHAPES "//! shape x [...S]\n//! shape m [P]\n//! shape y [...S]\n"
#define PLAIN "//! forward\n//! kernel k\n__global__ void k(float *y) {}\n"
