#pragma once

// For the tests of the compilers: an end for what a compile gives.

#include <stdlib.h>

#include "compiler/compile.h"

static void finish(struct compile_output *out, struct opd_err *err)
{
    free(out->image);
    free(out->symbol);
    free(out->log);
    free(out->text);
    opd_err_clear(err);
}
