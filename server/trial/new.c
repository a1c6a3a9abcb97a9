#include "trial/new.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/source.h"
#include "op/op.h"
#include "op/propose.h"

static int fail(struct opd_err *err, int code)
{
    fprintf(stderr, "opctl: %s\n%s", err->msg, err->log ? err->log : "");
    opd_err_clear(err);
    return code;
}

int new_main(int argc, char **argv)
{
    struct opd_err err = { 0 };
    struct buf out = { 0 };
    size_t size;
    const char *file = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    char *text = file_read(argv[0], &size, &err);
    if (!text)
        return fail(&err, 2);
    if (strstr(text, "//! op")) {
        op_fail(&err, "%s has a header already", file);
        free(text);
        return fail(&err, 2);
    }
    bool ok = propose_header(file, text, size, argc > 1 ? argv[1] : "", &out, &err);
    if (!ok) {
        free(text);
        buf_finish(&out);
        return fail(&err, 2);
    }
    buf_append(&out, text, size);
    fwrite(out.bytes, 1, out.size, stdout);
    struct op *op = op_parse(file, (const char *)out.bytes, out.size, &err);
    const char *missing = strstr(buf_str(&out), PROPOSE_MISSING);
    if (op && missing)
        op_fail(&err, "%s: see its line '// ? ...%s'", file, PROPOSE_MISSING);
    else if (op)
        fprintf(stderr, "opctl: it loads; '// ?' asks what was guessed; then opctl check\n");
    ok = op && !missing;
    op_unref(op);
    free(text);
    buf_finish(&out);
    return ok ? 0 : fail(&err, 1);
}
