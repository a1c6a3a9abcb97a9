#include "trial/new.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/source.h"
#include "op/op.h"
#include "op/propose.h"

static int fail(struct opd_err *err, int code)
{
    fprintf(stderr, "opctl: %s\n%s", err->msg, err->log ? err->log : "");
    opd_err_clear(err);
    return code;
}

// The text with what it includes from the file's folder. NULL with an error.
static struct source *expand(const char *path, const char *file, const char *text, size_t size,
                             struct opd_err *err)
{
    int n = (int)(file - path);
    char *folder = n > 0 ? mem_printf("%.*s", n, path) : mem_strdup(".");
    struct source *s = source_of_text(folder, file, text, size, err);
    free(folder);
    return s;
}

// Does what has been written load?
static bool check(const char *path, const char *file, struct buf *out, struct opd_err *err)
{
    struct source *s = expand(path, file, (const char *)out->bytes, out->size, err);
    struct op *op = s ? op_parse_whole(file, s->original, s->original_size, s->text, err) : NULL;
    const char *missing = strstr(buf_str(out), PROPOSE_MISSING);
    if (op && missing)
        op_fail(err, "%s: see its line '// ? ...%s'", file, PROPOSE_MISSING);
    else if (op)
        fprintf(stderr, "opctl: it loads; '// ?' asks what was guessed; then opctl check\n");
    bool ok = op && !missing;
    op_unref(op);
    source_free(s);
    return ok;
}

int new_main(int argc, char **argv)
{
    struct opd_err err = { 0 };
    struct buf out = { 0 };
    size_t size;
    const char *file = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    char *text = source_read_file(argv[0], &size, &err);
    if (!text)
        return fail(&err, 2);
    struct source *s = NULL;
    bool ok = strstr(text, "//! op") ? op_fail(&err, "%s has a header already", file)
                                     : (s = expand(argv[0], file, text, size, &err)) != NULL;
    const char *chosen = argc > 1 ? argv[1] : "";
    ok = ok && propose_header(file, s->text, strlen(s->text), chosen, &out, &err);
    source_free(s);
    if (!ok) {
        free(text);
        buf_finish(&out);
        return fail(&err, 2);
    }
    buf_append(&out, text, size);
    fwrite(out.bytes, 1, out.size, stdout);
    free(text);
    ok = check(argv[0], file, &out, &err);
    buf_finish(&out);
    return ok ? 0 : fail(&err, 1);
}
