#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/compile.h"
#include "compiler/disasm.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "compiler/nvrtc_load.h"
#include "compiler/rtc_describe.h"
#include "compiler/rtc_log.h"

// Part of the identity: anything here that changes an image changes this line.
static const char *const fixed_options[] = {
    "--std=c++17",
    "--device-as-default-execution-space", // helpers of a pasted file that nobody annotated
    "-lineinfo",
    "--modify-stack-limit=false",
};
enum { N_FIXED = sizeof(fixed_options) / sizeof(fixed_options[0]), COMMON_NAME = 32 };
enum { RC_OUT_OF_MEMORY = 1, RC_COMPILATION = 6, RC_BUILTINS = 7 }; // nvrtcResult

// The precompiled header is made and used by NVRTC as it sees fit; its remarks tell which.
static const char *const pch_options[] = {
    "--pch", "--pch-verbose=false",
    "-diag-suppress=20283", // that #line, which comes later, is in none
};
enum {
    MAX_PCH = 6,
    N_PCH = sizeof(pch_options) / sizeof(pch_options[0]),
    MAX_OPTIONS = N_FIXED + 5 + N_PCH + 2
};
static const char pch_used[] = "using precompiled header file";
static const char *pch_folder; // NULL: no precompiled headers

static const char *const stub_names[] = {
#define UNNEEDED(name) name,
#include "compiler/unneeded.def"
#undef UNNEEDED
    "tuple",
    "utility",
};
enum { N_STUBS = sizeof(stub_names) / sizeof(stub_names[0]) };

// The newest architecture that the library knows and whose code the target runs: same major, minor
// not above. 0: none.
static int choose_arch(const struct nvrtc *rtc, const char *target, struct opd_err *err)
{
    int wanted = 0, arch = 0;
    char end = 0;
    if (sscanf(target, "sm_%d%c", &wanted, &end) != 1) {
        opd_err_set(err, OPD_E_invalid_argument, "target is \"%s\", expected sm_<number>", target);
        return 0;
    }
    for (int i = 0; i < rtc->n_archs; i++)
        if (rtc->archs[i] / 10 == wanted / 10 && rtc->archs[i] <= wanted)
            arch = rtc->archs[i];
    if (arch == 0)
        opd_err_set(err, OPD_E_unavailable,
                    "NVRTC %d.%d (%s) does not compile for %s, only from sm_%d to sm_%d; install "
                    "another version",
                    rtc->major, rtc->minor, rtc->path, target, rtc->archs[0],
                    rtc->archs[rtc->n_archs - 1]);
    return arch;
}

// NVRTC takes a header of the same name for the same header, even where its text is another: the
// name tells the text.
static void name_common(const char *text, char out[COMMON_NAME])
{
    snprintf(out, COMMON_NAME, "opd-%016llx.cuh",
             (unsigned long long)hash_bytes(text, strlen(text), 0));
}

// PTX knows no escapes in a file's name.
static void append_line(struct buf *out, const char *file)
{
    buf_append_str(out, "\n#line 1 \"");
    for (const char *s = file; *s; s++)
        buf_append(out, *s == '"' || *s == '\\' || (unsigned char)*s < ' ' ? "_" : s, 1);
    buf_append_str(out, "\"\n");
}

static bool create_program(const struct nvrtc *rtc, const struct compile_input *in, void **program,
                           struct opd_err *err)
{
    const char *texts[N_STUBS + 1], *names[N_STUBS + 1];
    char common[COMMON_NAME];
    name_common(in->common, common);
    for (int i = 0; i < N_STUBS; i++) {
        texts[i] = "";
        names[i] = stub_names[i];
    }
    texts[N_STUBS] = in->common;
    names[N_STUBS] = common;

    struct buf source = { 0 };
    buf_printf(&source, "#include \"%s\"\n%s", common, pch_folder ? "#pragma nv_hdrstop" : "");
    const char *behind = compile_behind(in);
    append_line(&source, "prelude");
    buf_append(&source, in->prelude, (size_t)(behind - in->prelude));
    append_line(&source, in->file);
    buf_append_str(&source, in->source);
    append_line(&source, "prelude");
    buf_append_str(&source, behind);
    // One name for all, as the precompiled header is of a program of that name.
    int rc = rtc->nvrtcCreateProgram(program, buf_str(&source), "opd", N_STUBS + 1, texts, names);
    buf_finish(&source);
    if (rc == 0 && rtc->nvrtcAddNameExpression(*program, in->expr) == 0)
        return true;
    return opd_err_set(err, OPD_E_internal, "%s: NVRTC did not take the program (code %d)",
                       in->file, rc);
}

static int run_compiler(const struct nvrtc *rtc, const struct compile_input *in, int arch,
                        void *program)
{
    const char *options[MAX_OPTIONS];
    char *own[5];
    int n = 0, n_own = 0;
    own[n_own++] = mem_printf("--gpu-architecture=%s_%d",
                              in->kind == COMPILE_PTX ? "compute" : "sm", arch);
    if (in->folder)
        own[n_own++] = mem_printf("-I%s", in->folder);
    for (int i = 0; i < 2; i++)
        if (rtc->include[i][0])
            own[n_own++] = mem_printf("-I%s", rtc->include[i]);
    if (pch_folder)
        own[n_own++] = mem_printf("--pch-dir=%s", pch_folder);

    for (int i = 0; i < N_FIXED; i++)
        options[n++] = fixed_options[i];
    for (int i = 0; i < n_own; i++)
        options[n++] = own[i];
    for (int i = 0; pch_folder && i < N_PCH; i++)
        options[n++] = pch_options[i];
    if (rtc->major >= 13)
        options[n++] = "--no-cache"; // ours is bounded, and knows all that goes into an image
    if (in->kind == COMPILE_SYNTAX)
        options[n++] = "--fdevice-syntax-only";
    else if (in->kind == COMPILE_DESCRIBE)
        options[n++] = "--ptxas-options=-v";
    int rc = rtc->nvrtcCompileProgram(program, n, options);
    for (int i = 0; i < n_own; i++)
        free(own[i]);
    return rc;
}

// As the library gives it, with the common header under the name that people know.
static char *read_log(const struct nvrtc *rtc, const struct compile_input *in, void *program)
{
    size_t size = 0;
    if (rtc->nvrtcGetProgramLogSize(program, &size) != 0)
        size = 0;
    char *log = mem_zalloc(size + 1, 1);
    if (size > 0 && rtc->nvrtcGetProgramLog(program, log) != 0)
        log[0] = '\0';
    char common[COMMON_NAME];
    name_common(in->common, common);
    size_t length = strlen(common);
    for (char *at = log; (at = strstr(at, common)) != NULL;) {
        memcpy(at, "opd.cuh", 7);
        memmove(at + 7, at + length, strlen(at + length) + 1);
    }
    return log;
}

// `raw` is the library's log.
static bool report_failure(const struct compile_input *in, int rc, const char *raw,
                           struct opd_err *err)
{
    char *log = rtc_log_rewrite(raw);
    if (rc == RC_COMPILATION && log) {
        char *first = rtc_log_first_error(log, in->file, in->expr);
        opd_err_set(err, OPD_E_compile_error, "%s", first);
        free(first);
    } else if (rc == RC_BUILTINS) {
        opd_err_set(err, OPD_E_unavailable,
                    "NVRTC does not find libnvrtc-builtins beside libnvrtc: its installation is "
                    "incomplete");
    } else if (rc == RC_OUT_OF_MEMORY) {
        opd_err_set(err, OPD_E_compile_error,
                    "%s: NVRTC ran out of memory on kernel '%s'; look for templates or macros that "
                    "multiply",
                    in->file, in->expr);
    } else {
        opd_err_set(err, OPD_E_compile_error, "%s: NVRTC failed on kernel '%s' (code %d)", in->file,
                    in->expr, rc);
    }
    err->log = log;
    return false;
}

static bool read_image(const struct nvrtc *rtc, const struct compile_input *in, void *program,
                       struct compile_output *out, struct opd_err *err)
{
    const char *symbol = NULL;
    if (rtc->nvrtcGetLoweredName(program, in->expr, &symbol) != 0 || !symbol)
        return opd_err_set(err, OPD_E_compile_error, "%s: '%s' names no kernel", in->file,
                           in->expr);
    size_t size = 0;
    if (rtc->nvrtcGetCUBINSize(program, &size) != 0 || size == 0)
        return opd_err_set(err, OPD_E_internal, "%s: NVRTC made no image of '%s'", in->file,
                           in->expr);
    uint8_t *image = mem_alloc(size);
    if (rtc->nvrtcGetCUBIN(program, (char *)image) != 0) {
        free(image);
        return opd_err_set(err, OPD_E_internal, "%s: NVRTC did not give the image of '%s'",
                           in->file, in->expr);
    }
    out->image = image;
    out->size = size;
    out->symbol = mem_strdup(symbol);
    return true;
}

static bool read_ptx(const struct nvrtc *rtc, const struct compile_input *in, void *program,
                     struct compile_output *out, struct opd_err *err)
{
    size_t size = 0;
    if (rtc->nvrtcGetPTXSize(program, &size) != 0 || size == 0)
        return opd_err_set(err, OPD_E_internal, "%s: NVRTC made no PTX of '%s'", in->file,
                           in->expr);
    out->text = mem_zalloc(size + 1, 1);
    return rtc->nvrtcGetPTX(program, out->text) == 0 ||
           opd_err_set(err, OPD_E_internal, "%s: NVRTC did not give the PTX of '%s'", in->file,
                       in->expr);
}

static bool read_output(const struct nvrtc *rtc, const struct compile_input *in, void *program,
                        const char *log, struct compile_output *out, struct opd_err *err)
{
    if (in->kind == COMPILE_SYNTAX)
        return true;
    if (in->kind == COMPILE_PTX)
        return read_ptx(rtc, in, program, out, err);
    if (!read_image(rtc, in, program, out, err))
        return false;
    if (in->kind == COMPILE_SASS)
        return disasm_cubin(rtc->path, out->image, out->size, &out->text, err);
    if (in->kind == COMPILE_DESCRIBE)
        out->text = rtc_describe(log, out->symbol, out->image, out->size);
    return in->kind == COMPILE_IMAGE || out->text ||
           opd_err_set(err, OPD_E_unavailable, "NVRTC %d.%d does not tell what '%s' takes",
                       rtc->major, rtc->minor, in->expr);
}

static void remove_one(const char *path, void *unused)
{
    (void)unused;
    unlink(path);
}

// Each is some megabytes, and for one target, one folder and one text of the common header.
static void remove_pch(void)
{
    char *pattern = mem_printf("%s/*.pch", pch_folder);
    file_each(pattern, remove_one, NULL);
    free(pattern);
}

static void note_pch(const struct compile_input *in, bool used)
{
    static int n_made;
    log_debug("%s: precompiled header %s", in->file, used ? "used" : "made");
    if (used || ++n_made <= MAX_PCH)
        return;
    remove_pch();
    n_made = 0;
}

// Compiles once, without a judgement. The log is the caller's to free.
static bool compile_once(const struct nvrtc *rtc, const struct compile_input *in, int arch,
                         void **program, int *out_rc, char **out_log, struct opd_err *err)
{
    if (!create_program(rtc, in, program, err))
        return false;
    *out_rc = run_compiler(rtc, in, arch, *program);
    *out_log = read_log(rtc, in, *program);
    if (pch_folder && *out_rc == 0)
        note_pch(in, strstr(*out_log, pch_used) != NULL);
    return true;
}

// A precompiled header that cannot be written or read is fatal to NVRTC, and nothing to us.
static bool is_pch_trouble(int rc, const char *log)
{
    bool fatal = rc != RC_COMPILATION || strstr(log, "atastrophic error");
    return pch_folder && rc != 0 && fatal && !strstr(log, "out of memory");
}

bool nvrtc_compile(const struct compile_input *in, struct compile_output *out, struct opd_err *err)
{
    *out = (struct compile_output){ 0 };
    const struct nvrtc *rtc = nvrtc_load(err);
    if (!rtc)
        return false;
    int arch = choose_arch(rtc, in->target, err), rc = 0;
    if (arch == 0)
        return false;
    if (rtc->major * 100 + rtc->minor < 1208)
        pch_folder = NULL;

    void *program = NULL;
    char *log = NULL;
    bool ok = compile_once(rtc, in, arch, &program, &rc, &log, err);
    if (ok && is_pch_trouble(rc, log)) {
        const char *folder = pch_folder;
        pch_folder = NULL;
        free(log);
        log = NULL;
        rtc->nvrtcDestroyProgram(&program);
        ok = compile_once(rtc, in, arch, &program, &rc, &log, err);
        if (rc != 0)
            pch_folder = folder;
        else
            log_warn("no precompiled headers any more: %s cannot be used", folder);
    }
    if (ok)
        ok = rc == 0 ? read_output(rtc, in, program, log, out, err)
                     : report_failure(in, rc, log, err);
    if (ok)
        out->log = rtc_log_rewrite(log);
    free(log);
    if (program)
        rtc->nvrtcDestroyProgram(&program);
    return ok;
}

void nvrtc_use_pch(const char *folder)
{
    pch_folder = folder;
}

const char *nvrtc_identity(struct opd_err *err)
{
    static char line[512];
    const struct nvrtc *rtc = nvrtc_load(err);
    if (!rtc)
        return NULL;
    int n = snprintf(line, sizeof(line), "nvrtc %d.%d (%lld bytes%s) cubin", rtc->major, rtc->minor,
                     rtc->size, rtc->include[0][0] ? ", with the toolkit's headers" : "");
    for (int i = 0; i < N_FIXED; i++)
        n += snprintf(line + n, sizeof(line) - (size_t)n, " %s", fixed_options[i]);
    return line;
}
