#include "compiler/compile.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/child.h"
#include "base/file.h"
#include "base/hash.h"
#include "compiler/disasm.h"
#include "compiler/field.h"
#include "compiler/host_cxx.h"
#include "compiler/host_log.h"
#include "compiler/host_loop.h"
#include "compiler/host_pch.h"
#include "compiler/host_shown.h"
#include "compiler/host_skip.h"
#include "compiler/host_source.h"

// COMPILE_LIMIT_MS: beyond what the daemon grants (--compile-deadline), which ends us before.
enum { COMPILE_LIMIT_MS = 3600000, LOG_LIMIT = 256 * 1024, MAX_SHOWN = 16 };

static const char tu_name[] = "opd.cpp", common_name[] = "opd.cuh", object_name[] = "opd.so",
                  symbol_name[] = "opd_cpu_kernel_export";

static const char *const common_flags[] = {
    "-x",
    "c++",
    "-std=c++17",
    "-O3",
    "-march=native",
    "-g1",
    "-fPIC",
    "-shared",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wno-attributes",
    "-Wno-unknown-pragmas",
    "-nostdlib",
#if defined(__x86_64__)
    "-fstack-clash-protection",  // a deep stack meets its guard, however large a frame is
    "-mprefer-vector-width=512", // of those that there are
#endif
};
// A loop with branches is not vectorised, and threading makes some of what were selections.
static const char *const gcc_flags[] = { "-fno-gnu-unique", "-fdiagnostics-color=never",
                                         "-fno-thread-jumps" };
static const char *const clang_flags[] = { "-ffp-contract=fast", "-fno-color-diagnostics",
                                           "-Wno-pass-failed" };

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void append_quoted(struct buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            buf_append_str(out, "\\");
        buf_append(out, s, 1);
    }
}

static void append_line(struct buf *out, const char *file)
{
    buf_append_str(out, "\n#line 1 \"");
    append_quoted(out, file);
    buf_append_str(out, "\"\n");
}

// What is the same for most units.
static void compose_beginning(const struct compile_input *in, struct buf *out)
{
    if (!in->sanitize && host_loop_is_plain(in))
        buf_append_str(out, "#define OPD_CPU_PLAIN_LOOP\n");
    if (in->backwards)
        buf_append_str(out, "#define OPD_CPU_BACKWARDS\n");
    append_line(out, "cpu_shim.h");
    buf_append_str(out, cpu_shim_text);
    cpu_refuse_append(out);
    buf_printf(out, "#include \"%s\"", common_name);
}

static void compose_rest(const struct compile_input *in, struct buf *out)
{
    const char *behind = compile_behind(in);
    append_line(out, "prelude");
    buf_append(out, in->prelude, (size_t)(behind - in->prelude));
    struct buf kernels = { 0 }, brought = { 0 };
    host_skip(in, &kernels);
    field_bring(buf_str(&kernels), &brought);
    host_source_rewrite(buf_str(&brought), NULL, out);
    append_line(out, in->file);
    host_source_rewrite(buf_str(&kernels), in->folder, out);
    buf_finish(&kernels);
    buf_finish(&brought);
    append_line(out, "prelude");
    buf_append_str(out, behind);
    append_line(out, "kernel");
    buf_printf(out, "OPD_CPU_EXPORT(%s, %s)\n", symbol_name, in->expr);
    for (int i = 0; i < in->n_more; i++)
        buf_printf(out, "OPD_CPU_EXPORT(%s_%d, %s)\n", symbol_name, i + 1, in->more[i]);
}

static bool write_file(const char *folder, const char *name, const void *bytes, size_t size,
                       struct opd_err *err)
{
    char *path = mem_printf("%s/%s", folder, name);
    bool ok = file_make(path, bytes, size, err);
    free(path);
    return ok;
}

static bool read_object(const char *folder, struct compile_output *out, struct opd_err *err)
{
    struct buf bytes = { 0 };
    char *path = mem_printf("%s/%s", folder, object_name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || !file_get(fd, SIZE_MAX, &bytes))
        opd_err_errno(err, OPD_E_internal, "cannot read %s", path);
    file_close(&fd);
    free(path);
    out->image = bytes.bytes;
    out->size = bytes.size;
    out->symbol = mem_strdup(symbol_name);
    return err->code == OPD_E_none;
}

// No header of a system's is called so.
static bool is_source_name(const char *name)
{
    static const char *const suffixes[] = { ".cu", ".cuh", ".py", ".c", ".cc", ".cpp" };
    const char *suffix = strrchr(name, '.');
    bool found = strpbrk(name, "<[ ") != NULL;
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++)
        found = found || (suffix && strcmp(suffix, suffixes[i]) == 0);
    return found && !strchr(name, '/') && strcmp(name, tu_name) != 0;
}

// The source lies there under its files' own names as well, or the compiler could not show the
// lines that it names. Whatever is there already stays, and what cannot be written is not shown.
static void write_shown(const struct compile_input *in, const char *folder)
{
    struct host_shown files[MAX_SHOWN];
    int n = host_shown_split(in->file, in->source, files, MAX_SHOWN);
    for (int i = 0; i < n; i++) {
        if (is_source_name(files[i].name))
            write_file(folder, files[i].name, files[i].text.bytes, files[i].text.size, NULL);
    }
    host_shown_finish(files, n);
}

// Several names may be one file's, which is there then.
static void write_field(const char *name, const struct field_header *header, void *folder)
{
    struct buf text = { 0 };
    (void)name;
    host_source_rewrite(header->text, NULL, &text);
    write_file(folder, header->file, text.bytes, text.size, NULL);
    buf_finish(&text);
}

// `beginning`: "" where it stands elsewhere.
static bool write_inputs(const struct compile_input *in, const char *folder, const char *beginning,
                         struct opd_err *err)
{
    if (!write_file(folder, common_name, in->common, strlen(in->common), err))
        return false;
    write_shown(in, folder);
    struct buf tu = { 0 };
    buf_append_str(&tu, beginning);
    compose_rest(in, &tu);
    field_each(buf_str(&tu), write_field, (void *)(uintptr_t)folder);
    bool ok = write_file(folder, tu_name, tu.bytes, tu.size, err);
    buf_finish(&tu);
    return ok;
}

struct command {
    int n;
    const char *words[64];
    char sanitize[64];
};

static void add_words(struct command *c, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        c->words[c->n++] = words[i];
}

static const char *const sanitize_flags[] = { "-g", "-fno-omit-frame-pointer", "-fno-sanitize=vptr",
                                              "-Wno-tsan" };

// What runs for a moment is not made fast, which takes the longest by far: most of all where every
// access has the checks of two sanitizers around it.
static const char *choose_level(const struct compile_input *in)
{
    return in->sanitize && strcmp(in->sanitize, "thread") != 0 ? "-O0" : "-O1";
}

static void compose_flags(const struct host_cxx *cxx, const struct compile_input *in,
                          struct command *c)
{
    const char *sanitize = in->sanitize;
    add_words(c, cxx->words, cxx->words[1] ? 2 : 1);
    add_words(c, common_flags, COUNT(common_flags));
    if (cxx->clang)
        add_words(c, clang_flags, COUNT(clang_flags));
    else
        add_words(c, gcc_flags, COUNT(gcc_flags));
    if (sanitize) {
        snprintf(c->sanitize, sizeof c->sanitize, "-fsanitize=%s", sanitize);
        add_words(c, (const char *[]){ c->sanitize }, 1);
        add_words(c, sanitize_flags, COUNT(sanitize_flags) - (cxx->clang ? 1 : 0));
    }
    if (in->trial)
        add_words(c, (const char *[]){ choose_level(in) }, 1); // the last one counts
    c->words[c->n] = NULL;
}

static void compose_inputs(enum compile_kind kind, const char *folder, const char *first,
                           struct command *c)
{
    if (first)
        add_words(c, (const char *[]){ "-include", first }, 2);
    if (folder)
        add_words(c, (const char *[]){ "-iquote", folder }, 2);
    if (kind == COMPILE_SYNTAX)
        add_words(c, (const char *[]){ "-fsyntax-only" }, 1);
    // After -x c++ the libraries need no file type; the order decides what is linked.
    add_words(c, (const char *[]){ "-o", object_name, tu_name, "-lm", "-lc" }, 5);
    c->words[c->n] = NULL;
}

static bool report_failure(const struct compile_input *in, char *log, struct opd_err *err)
{
    char *first = host_log_first_error(log ? log : "", in->file, in->expr);
    if (!host_source_find_launch(in->file, in->source, err))
        opd_err_set(err, OPD_E_compile_error, "%s", first);
    free(first);
    err->log = log;
    return false;
}

static bool read_output(const struct compile_input *in, const char *tmp, struct compile_output *out,
                        struct opd_err *err)
{
    if (in->kind == COMPILE_SYNTAX)
        return true;
    if (in->kind == COMPILE_DESCRIBE)
        out->text = mem_strdup(""); // no such numbers here
    return read_object(tmp, out, err) &&
           (in->kind != COMPILE_SASS || disasm_object(out->image, out->size, &out->text, err));
}

static bool compile_in(const struct compile_input *in, const char *tmp, struct compile_output *out,
                       struct opd_err *err)
{
    const struct host_cxx *cxx = host_cxx_find(err);
    if (!cxx)
        return false;
    char *folder = in->folder ? realpath(in->folder, NULL) : NULL;
    struct command command = { 0 };
    struct buf output = { 0 }, beginning = { 0 };
    int status = 0;
    compose_beginning(in, &beginning);
    compose_flags(cxx, in, &command);
    bool precompiles = !cxx->clang && !in->sanitize;
    const char *first = precompiles ? host_pch_find(buf_str(&beginning), in->common, command.words)
                                    : NULL;
    // zig, the one with a mode, takes it for a failure where no object comes of it.
    bool whole = in->kind == COMPILE_SYNTAX && cxx->words[1];
    compose_inputs(whole ? COMPILE_IMAGE : in->kind, folder, first, &command);
    bool ok = write_inputs(in, tmp, first ? "" : buf_str(&beginning), err) &&
              child_run((char *const *)command.words, tmp, COMPILE_LIMIT_MS, LOG_LIMIT, &output,
                        &status, err);
    char *log = ok ? host_log_rewrite(buf_str(&output)) : NULL;
    if (ok && status != 0)
        ok = report_failure(in, log, err);
    else if (ok)
        out->log = log;
    if (ok)
        ok = read_output(in, tmp, out, err);
    buf_finish(&output);
    buf_finish(&beginning);
    free(folder);
    return ok;
}

bool host_compile(const struct compile_input *in, struct compile_output *out, struct opd_err *err)
{
    *out = (struct compile_output){ 0 };
    if (in->kind == COMPILE_PTX)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "the cpu device has no PTX; ask for \"sass\", its machine code");
    char *tmp = file_temporary("opd-XXXXXX");
    bool ok = mkdtemp(tmp) != NULL;
    if (!ok) {
        opd_err_errno(err, OPD_E_internal, "no temporary folder %s (in $TMPDIR, else /tmp)", tmp);
    } else {
        ok = compile_in(in, tmp, out, err);
        file_remove_tree(tmp);
    }
    free(tmp);
    return ok;
}

static uint64_t hash_shim(void)
{
    struct buf text = { 0 };
    buf_append_str(&text, cpu_shim_text);
    cpu_refuse_append(&text);
    uint64_t hash = hash_bytes(text.bytes, text.size, field_hash());
    buf_finish(&text);
    return hash;
}

const char *host_identity(struct opd_err *err)
{
    static char *identity;
    const struct host_cxx *cxx = identity ? NULL : host_cxx_find(err);
    if (cxx) {
        struct command command = { 0 };
        struct buf text = { 0 };
        compose_flags(cxx, &(struct compile_input){ 0 }, &command);
        compose_inputs(COMPILE_IMAGE, NULL, NULL, &command);
        buf_printf(&text, "%s on%s, shim %016llx:", cxx->version, cxx->processor,
                   (unsigned long long)hash_shim());
        for (int i = 0; i < command.n; i++)
            buf_printf(&text, " %s", command.words[i]);
        identity = buf_take(&text);
    }
    return identity;
}
