#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compiler/compile.h"
#include "compiler/disasm.h"
#include "compiler/field.h"
#include "compiler/host_skip.h"
#include "compiler/host_unit.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "compiler/nvrtc_headers.h"
#include "compiler/nvrtc_load.h"
#include "compiler/pch.h"
#include "compiler/rtc_checked.h"
#include "compiler/rtc_describe.h"
#include "compiler/rtc_hoist.h"
#include "compiler/rtc_log.h"

// Part of the identity: anything here that changes an image changes this line.
static const char *const fixed_options[] = {
    "--std=c++17",
    "--device-as-default-execution-space", // helpers of a pasted file that nobody annotated
    "-lineinfo",
    "--modify-stack-limit=false",
    "-D_CCCL_META_UNROLL_LIMIT=10", // as under nvcc; NVRTC's 16 costs a second and 190 MiB
};
enum { N_FIXED = sizeof(fixed_options) / sizeof(fixed_options[0]), COMMON_NAME = 32 };
#define UNIT_NAME "opd"
enum { RC_OUT_OF_MEMORY = 1, RC_COMPILATION = 6, RC_BUILTINS = 7 }; // nvrtcResult

enum { MAX_OWN = 6, MAX_OPTIONS = N_FIXED + MAX_OWN + 5 };
static const char pch_used[] = "using precompiled header file";
static const char pch_made[] = "creating precompiled header file";

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

// What NVRTC is asked, in both its halves. One compile.
struct job {
    const struct nvrtc *rtc;
    const struct compile_input *in;
    int arch;
    bool ptx;                // and no machine's code: the driver makes that
    struct buf kernels;      // the file's text, without the host's code
    struct buf names, texts; // the headers that the program is given: of char *, const char *
    bool theirs;             // NVIDIA's own are taken where they have one of the name
    const struct rtc_hoisted *hoisted;
    const char *options[MAX_OPTIONS];
    char *own[MAX_OWN];
    int n, n_own;
    void *program;
    int rc;
    char *log;
};

static void add_own(struct job *job, char *option)
{
    job->own[job->n_own++] = option;
    job->options[job->n++] = option;
}

// The operator's own folder is the last, so that a precompiled header has nothing from there; and
// a file that needs nothing from there shares it with those of other folders.
static void choose_options(struct job *job, bool local)
{
    const struct compile_input *in = job->in;
    for (int i = 0; i < N_FIXED; i++)
        job->options[job->n++] = fixed_options[i];
    add_own(job, mem_printf("--gpu-architecture=%s_%d", job->ptx ? "compute" : "sm", job->arch));
    for (int i = 0; i < 2; i++)
        if (job->rtc->include[i][0])
            add_own(job, mem_printf("-I%s", job->rtc->include[i]));
    if (in->folder && local)
        add_own(job, mem_printf("-I%s", in->folder));
    if (in->kind == COMPILE_SYNTAX)
        job->options[job->n++] = "--fdevice-syntax-only";
    if (job->rtc->major >= 13)
        job->options[job->n++] = "--no-cache"; // ours knows all that goes into an image
}

// All that NVRTC holds against a precompiled header, and what it does not: the texts.
static void make_pch_key(const struct job *job, struct cache_key *key)
{
    struct buf options = { 0 };
    for (int i = 0; i < job->n; i++)
        buf_printf(&options, "%s\n", job->options[i]);
    buf_printf(&options, "%llx", (unsigned long long)field_hash());
    char *library = mem_printf("%s %lld bytes, at %p, heap at %p", job->rtc->path, job->rtc->size,
                               job->rtc->base, pch_heap());
    const char *parts[] = { library,
                            nvrtc_headers_identity(),
                            buf_str(&options),
                            job->theirs ? "theirs" : "ours",
                            job->hoisted->before,
                            job->in->common,
                            job->hoisted->behind };
    cache_make_key_of(key, parts, sizeof parts / sizeof *parts);
    free(library);
    buf_finish(&options);
}

static void add_pch(struct job *job)
{
    struct cache_key key;
    make_pch_key(job, &key);
    const char *option = pch_option(&key, job->in->cache ? job->in->cache : "");
    if (!option)
        return;
    job->options[job->n++] = option;
    job->options[job->n++] = "-diag-suppress=20283"; // that #line, which comes later, is in none
}

static bool is_theirs(const struct nvrtc *rtc, const char *name)
{
    bool there = false;
    for (int i = 0; i < 2 && !there && rtc->include[i][0] && name[0] && !strstr(name, ".."); i++) {
        char *path = mem_printf("%s/%s", rtc->include[i], name);
        there = access(path, R_OK) == 0;
        free(path);
    }
    return there;
}

static void add_header(struct job *job, const char *name, const char *text)
{
    for (size_t i = 0; i < HOST_COUNT(job->names, char *); i++)
        if (strcmp(*HOST_AT(job->names, char *, i), name) == 0)
            return;
    char *copy = mem_strdup(name);
    buf_append(&job->names, &copy, sizeof copy);
    buf_append(&job->texts, &text, sizeof text);
}

static void add_field_header(const char *name, const struct field_header *header, void *data)
{
    struct job *job = data;
    if (!job->theirs || !header->nvidia || !is_theirs(job->rtc, name))
        add_header(job, name, header->text);
}

// Headers that are not there.
static void add_absent(struct job *job, const char *source)
{
    struct host_lexer l = { source, 1, true };
    for (struct host_token t; (t = host_lex(&l)).kind != HOST_END;) {
        if (!field_is_absent(&t, job->in->folder))
            continue;
        char *name = mem_strndup(field_included(&t), strcspn(field_included(&t), ">\"\n"));
        if (!is_theirs(job->rtc, name))
            add_header(job, name, "#warning \"" FIELD_ABSENT "\"\n");
        free(name);
    }
}

static bool create_program(struct job *job, struct opd_err *err)
{
    const struct compile_input *in = job->in;
    char common[COMMON_NAME];
    name_common(in->common, common);
    struct buf source = { 0 };
    buf_printf(&source, "%s#include \"%s\"\n%s#pragma nv_hdrstop", job->hoisted->before, common,
               job->hoisted->behind);
    const char *behind = compile_behind(in), *kernels = buf_str(&job->kernels);
    append_line(&source, "prelude");
    buf_append(&source, in->prelude, (size_t)(behind - in->prelude));
    append_line(&source, in->file);
    buf_append_str(&source, kernels);
    append_line(&source, "prelude");
    buf_append_str(&source, behind);
    add_header(job, common, in->common);
    field_each(NULL, add_field_header, job); // NVIDIA's include some of them
    field_each(buf_str(&source), add_field_header, job);
    add_absent(job, kernels);
    // One name for all, as the precompiled header is of a program of that name.
    int rc = job->rtc->nvrtcCreateProgram(
        &job->program, buf_str(&source), UNIT_NAME, (int)HOST_COUNT(job->names, char *),
        HOST_AT(job->texts, const char *, 0), HOST_AT(job->names, const char *, 0));
    buf_finish(&source);
    if (rc == 0)
        rc = job->rtc->nvrtcAddNameExpression(job->program, in->expr);
    for (int i = 0; rc == 0 && i < in->n_more; i++)
        rc = job->rtc->nvrtcAddNameExpression(job->program, in->more[i]);
    if (rc == 0)
        return true;
    return opd_err_set(err, OPD_E_internal, "%s: NVRTC did not take the program (code %d)",
                       in->file, rc);
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
    const char *symbol = NULL;
    if (rtc->nvrtcGetPTXSize(program, &size) != 0 || size == 0)
        return opd_err_set(err, OPD_E_internal, "%s: NVRTC made no PTX of '%s'", in->file,
                           in->expr);
    char *ptx = mem_zalloc(size + 1, 1);
    bool ok = rtc->nvrtcGetPTX(program, ptx) == 0 ||
              opd_err_set(err, OPD_E_internal, "%s: NVRTC did not give the PTX of '%s'", in->file,
                          in->expr);
    if (ok && in->kind == COMPILE_PTX && !rtc_is_checked(in)) {
        out->text = ptx;
        return true;
    }
    ok = ok && ((rtc->nvrtcGetLoweredName(program, in->expr, &symbol) == 0 && symbol) ||
                opd_err_set(err, OPD_E_compile_error, "%s: '%s' names no kernel", in->file,
                            in->expr));
    if (ok && rtc_is_checked(in))
        return rtc_check(in, ptx, symbol, out, err);
    if (!ok) {
        free(ptx);
        return false;
    }
    out->size = strlen(ptx) + 1;
    out->image = (uint8_t *)ptx;
    out->symbol = mem_strdup(symbol);
    return true;
}

static bool read_output(const struct job *job, struct compile_output *out, struct opd_err *err)
{
    const struct nvrtc *rtc = job->rtc;
    const struct compile_input *in = job->in;
    if (in->kind == COMPILE_SYNTAX)
        return true;
    if (job->ptx && (in->kind == COMPILE_PTX || in->kind == COMPILE_IMAGE))
        return read_ptx(rtc, in, job->program, out, err);
    if (job->ptx && in->kind == COMPILE_DESCRIBE)
        return (out->text = mem_strdup("")) != NULL;
    if (job->ptx)
        return opd_err_set(err, OPD_E_unavailable,
                           "NVRTC %d.%d does not compile for %s: the driver does, from PTX; "
                           "ask for that, or install a newer NVRTC",
                           rtc->major, rtc->minor, in->target);
    if (!read_image(rtc, in, job->program, out, err))
        return false;
    if (in->kind == COMPILE_SASS)
        return disasm_cubin(rtc->path, out->image, out->size, &out->text, err);
    if (in->kind == COMPILE_DESCRIBE)
        out->text = rtc_describe(job->log, out->symbol, out->image, out->size);
    return in->kind == COMPILE_IMAGE || out->text ||
           opd_err_set(err, OPD_E_unavailable, "NVRTC %d.%d does not tell what '%s' takes",
                       rtc->major, rtc->minor, in->expr);
}

static void finish_job(struct job *job)
{
    for (int i = 0; i < job->n_own; i++)
        free(job->own[i]);
    for (size_t i = 0; i < HOST_COUNT(job->names, char *); i++)
        free(*HOST_AT(job->names, char *, i));
    buf_finish(&job->names);
    buf_finish(&job->texts);
    free(job->log);
    if (job->program)
        job->rtc->nvrtcDestroyProgram(&job->program);
    *job = (struct job){
        .rtc = job->rtc, .in = job->in, .arch = job->arch, .ptx = job->ptx,
        .kernels = job->kernels, .theirs = job->theirs
    };
}

// A precompiled header that cannot be written or read is fatal to NVRTC, and nothing to us.
static enum pch_result judge_pch(const struct job *job, bool used)
{
    if (strstr(job->log, "out of memory"))
        return PCH_NEITHER;
    if ((job->rc != 0 && job->rc != RC_COMPILATION) || strstr(job->log, "atastrophic error"))
        return PCH_FAILED;
    if (strstr(job->log, pch_used))
        return PCH_USED;
    return strstr(job->log, pch_made) ? PCH_MADE : used ? PCH_FAILED : PCH_NEITHER;
}

// Compiles once, without a judgement but that of the precompiled header.
static bool compile_once(struct job *job, const struct rtc_hoisted *hoisted, bool pch,
                         enum pch_result *out_pch, struct opd_err *err)
{
    finish_job(job);
    job->hoisted = hoisted;
    choose_options(job, hoisted->local);
    int n = job->n;
    if (pch)
        add_pch(job);
    pch = job->n > n;
    bool used = pch && strstr(job->options[n], "--use-pch");
    if (job->in->kind == COMPILE_DESCRIBE)
        job->options[job->n++] = "--ptxas-options=-v";
    *out_pch = PCH_NEITHER;
    bool ok = create_program(job, err);
    if (ok) {
        job->rc = job->rtc->nvrtcCompileProgram(job->program, job->n, job->options);
        job->log = read_log(job->rtc, job->in, job->program);
        *out_pch = pch ? judge_pch(job, used) : PCH_NEITHER;
    }
    if (pch)
        pch_done(*out_pch);
    log_debug("%s: precompiled header %s", job->in->file,
              *out_pch == PCH_USED   ? "used"
              : *out_pch == PCH_MADE ? "made"
                                     : "not used");
    return ok;
}

// Does the compiler complain of the lines that were put first, which are not the file's?
static bool is_about_first(const struct job *job)
{
    static const char head[] = "\n" UNIT_NAME "(";
    return job->rc != 0 &&
           (strncmp(job->log, head + 1, strlen(head + 1)) == 0 || strstr(job->log, head) != NULL);
}

// One that NVIDIA alone has brings others of theirs along.
static enum rtc_include judge_include(const char *name, void *data)
{
    struct job *job = data;
    const struct nvrtc *rtc = job->rtc;
    struct field_header header;
    bool known = field_find(name, &header);
    if (known && (!job->theirs || !header.nvidia))
        return header.text[0] ? RTC_INCLUDE_OURS : RTC_INCLUDE_EMPTY;
    nvrtc_headers_unpack(job->in->cache);
    bool there = is_theirs(rtc, name);
    job->theirs |= there;
    char *path = mem_printf("%s/%s", job->in->folder ? job->in->folder : "", name);
    bool absent = !job->in->folder || access(path, R_OK) != 0;
    free(path);
    return there ? RTC_INCLUDE_FIXED : absent ? RTC_INCLUDE_EMPTY : RTC_INCLUDE_LOCAL;
}

static struct rtc_hoisted hoist(struct job *job)
{
    const char *kernels = buf_str(&job->kernels);
    bool suffices = field_suffices(kernels);
    if (!suffices)
        nvrtc_headers_unpack(job->in->cache);
    job->theirs = !suffices && job->rtc->include[0][0];
    bool theirs = job->theirs;
    struct rtc_hoisted hoisted = rtc_hoist(kernels, job->in->common, job->in->prelude,
                                           judge_include, job);
    if (job->theirs && !theirs) {
        free(hoisted.before);
        free(hoisted.behind);
        hoisted = rtc_hoist(kernels, job->in->common, job->in->prelude, judge_include, job);
    }
    struct buf behind = { 0 };
    buf_append_str(&behind, hoisted.behind);
    field_bring(kernels, &behind);
    free(hoisted.behind);
    hoisted.behind = buf_take(&behind);
    return hoisted;
}

// With a precompiled header, else without; with the file's includes first, else in their place.
static bool compile(struct job *job, struct opd_err *err)
{
    enum pch_result pch;
    struct rtc_hoisted hoisted = hoist(job);
    bool ready = job->rtc->pch && pch_ready();
    bool ok = compile_once(job, &hoisted, ready, &pch, err);
    if (ok && pch == PCH_FAILED && job->rc != 0) {
        log_warn("a precompiled header cannot be made or used: %.*s", (int)strcspn(job->log, "\n"),
                 job->log);
        ok = compile_once(job, &hoisted, false, &pch, err);
    }
    if (ok && hoisted.before[0] && is_about_first(job)) {
        hoisted.before[0] = '\0';
        ok = compile_once(job, &hoisted, false, &pch, err);
    }
    free(hoisted.before);
    free(hoisted.behind);
    return ok;
}

// The library's, before what a checked build says of itself.
static void add_log(struct compile_output *out, char *log)
{
    char *both = log && out->log ? mem_printf("%s%s", log, out->log) : NULL;
    if (both) {
        free(log);
        free(out->log);
    }
    out->log = both ? both : log ? log : out->log;
}

bool nvrtc_compile(const struct compile_input *in, struct compile_output *out, struct opd_err *err)
{
    *out = (struct compile_output){ 0 };
    const struct nvrtc *rtc = nvrtc_load(err);
    struct job job = { .rtc = rtc, .in = in };
    job.arch = rtc ? nvrtc_choose_arch(rtc, in->target, &job.ptx, err) : 0;
    if (job.arch == 0)
        return false;
    job.ptx |= in->kind == COMPILE_PTX || rtc_is_checked(in);
    host_skip(in, &job.kernels);
    bool ok = compile(&job, err);
    if (ok)
        ok = job.rc == 0 ? read_output(&job, out, err)
                         : report_failure(in, job.rc, job.log, err);
    if (ok)
        add_log(out, rtc_log_rewrite(job.log));
    finish_job(&job);
    buf_finish(&job.kernels);
    return ok;
}

const char *nvrtc_identity(struct opd_err *err)
{
    static char *identity;
    const struct nvrtc *rtc = nvrtc_load(err);
    if (!rtc || identity)
        return rtc ? identity : NULL;
    const char *headers = nvrtc_headers_identity();
    struct buf line = { 0 };
    buf_printf(&line, "nvrtc %d.%d (%lld bytes%s%s) cubin", rtc->major, rtc->minor, rtc->size,
               headers[0] ? ", headers " : "", headers);
    for (int i = 0; i < N_FIXED; i++)
        buf_printf(&line, " %s", fixed_options[i]);
    buf_printf(&line, " %016llx", (unsigned long long)field_hash());
    return identity = buf_take(&line);
}
