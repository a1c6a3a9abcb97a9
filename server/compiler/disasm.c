#include "compiler/disasm.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/child.h"
#include "base/file.h"
#include "base/mem.h"

enum { LIMIT_MS = 30000, LISTING_LIMIT = 32 << 20 };

struct tool {
    const char *name;
    const char *options[4];
};

static const struct tool cubin_tools[] = {
    { "nvdisasm", { "--print-code", "--print-line-info" } },
    { "cuobjdump", { "--dump-sass" } },
};
static const struct tool object_tools[] = {
    { "objdump", { "--disassemble", "--demangle", "--no-show-raw-insn", "--section=.text" } },
};

// The program's path: in the folder, or where `folder` is NULL anywhere on $PATH. NULL: not there.
static char *find_in(const char *folder, const char *tail, const char *name)
{
    char *path = mem_printf("%s%s/%s", folder, tail, name);
    if (folder[0] && access(path, X_OK) == 0)
        return path;
    free(path);
    return NULL;
}

static char *find_on_path(const char *name)
{
    const char *path = getenv("PATH");
    char *rest = mem_strdup(path ? path : ""), *next = rest, *folder, *found = NULL;
    while (!found && (folder = strsep(&next, ":")) != NULL)
        found = find_in(folder, "", name);
    free(rest);
    return found;
}

static char *find_in_toolkit(const char *library, const char *name)
{
    const char *home = getenv("CUDA_HOME"), *path = getenv("CUDA_PATH"),
               *slash = strrchr(library, '/');
    char *beside = slash ? mem_strndup(library, (size_t)(slash - library)) : mem_strdup("");
    char *found = find_in(home ? home : "", "/bin", name)
                      ?: find_in(path ? path : "", "/bin", name)
                      ?: find_in(beside, "/../bin", name)
                      ?: find_in("/usr/local/cuda", "/bin", name)
                      ?: find_on_path(name);
    free(beside);
    return found;
}

static bool write_temporary(const void *image, size_t size, char **out_path, struct opd_err *err)
{
    char *path = *out_path = file_temporary("opd-listing-XXXXXX");
    int fd = mkostemp(path, O_CLOEXEC);
    bool ok = fd >= 0 && file_put(fd, image, size);
    if (!ok)
        opd_err_errno(err, OPD_E_internal, "cannot write %s", path);
    file_close(&fd);
    return ok;
}

static bool run_tool(const struct tool *tool, char *program, char *file, char **out,
                     struct opd_err *err)
{
    char *argv[8] = { program };
    int n = 1, status = 0;
    for (size_t i = 0; i < sizeof tool->options / sizeof *tool->options && tool->options[i]; i++)
        argv[n++] = mem_strdup(tool->options[i]);
    argv[n] = file;
    struct buf output = { 0 };
    bool ok = child_run(argv, NULL, LIMIT_MS, LISTING_LIMIT, &output, &status, err);
    if (ok && status != 0)
        ok = opd_err_set(err, OPD_E_internal, "%s fails (status %d): %.200s", program, status,
                         buf_str(&output));
    if (ok) {
        const char *text = buf_str(&output),
                   *start = strstr(text, "Disassembly of "); // behind the file's name
        *out = mem_strdup(start ? start : text);
    }
    buf_finish(&output);
    while (n-- > 1)
        free(argv[n]);
    return ok;
}

static bool list(const struct tool *tool, char *program, const void *image, size_t size, char **out,
                 struct opd_err *err)
{
    char *file;
    bool ok = write_temporary(image, size, &file, err) && run_tool(tool, program, file, out, err);
    unlink(file);
    free(file);
    free(program);
    return ok;
}

bool disasm_cubin(const char *toolkit, const void *image, size_t size, char **out,
                  struct opd_err *err)
{
    for (size_t i = 0; i < sizeof cubin_tools / sizeof *cubin_tools; i++) {
        char *program = find_in_toolkit(toolkit, cubin_tools[i].name);
        if (program)
            return list(&cubin_tools[i], program, image, size, out, err);
    }
    return opd_err_set(
        err, OPD_E_unavailable,
        "no disassembler for the GPU's code: neither nvdisasm nor cuobjdump is in $CUDA_HOME/bin, "
        "/usr/local/cuda/bin or on $PATH; install the CUDA toolkit (Debian: nvidia-cuda-toolkit, "
        "conda: cuda-nvdisasm)");
}

bool disasm_object(const void *image, size_t size, char **out, struct opd_err *err)
{
    char *program = find_on_path(object_tools[0].name);
    if (program)
        return list(&object_tools[0], program, image, size, out, err);
    return opd_err_set(
        err, OPD_E_unavailable,
        "no disassembler for the CPU's code: objdump is not on $PATH; install binutils");
}
