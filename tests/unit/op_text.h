#pragma once

// For the tests of server/op/: operators from text. Include after cmocka.h.

#include <stdio.h>
#include <string.h>

#include "op/plan.h"

__attribute__((unused)) static struct op *parse_text(const char *text)
{
    struct opd_err err = { 0 };
    struct op *op = op_parse("t.cu", text, strlen(text), &err);
    if (!op)
        fail_msg("%s\n%s", err.msg, text);
    return op;
}

// The text is refused with that message.
__attribute__((unused)) static void refuse_text(const char *text, const char *message)
{
    struct opd_err err = { 0 };
    struct op *op = op_parse("t.cu", text, strlen(text), &err);
    if (op)
        fail_msg("taken, expected '%s':\n%s", message, text);
    assert_int_equal(err.code, OPD_E_invalid_argument);
    assert_string_equal(err.msg, message);
    opd_err_clear(&err);
}
