#include "executor/cuda_context.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

enum { LOW_STACK = 256, STO_ENTRY = 0x10 };

// --- the stack

// A driver that does not take it has the usual.
void cuda_context_lower(struct cuda_backend *b)
{
    size_t usual = 0;
    if (b->cu->cuCtxGetLimit(&usual, DRV_LIMIT_STACK_SIZE) == DRV_SUCCESS && usual > LOW_STACK &&
        b->cu->cuCtxSetLimit(DRV_LIMIT_STACK_SIZE, LOW_STACK) == DRV_SUCCESS)
        b->stack = usual;
}

void cuda_context_raise(struct cuda_backend *b, const struct backend_image *image)
{
    size_t now = 0;
    if (b->stack == 0 || !cuda_context_has_calls(image->bytes, image->size))
        return;
    if (b->cu->cuCtxGetLimit(&now, DRV_LIMIT_STACK_SIZE) == DRV_SUCCESS && now < b->stack)
        b->cu->cuCtxSetLimit(DRV_LIMIT_STACK_SIZE, b->stack);
    b->stack = 0;
}

static bool reads(const void *bytes, size_t size, uint64_t at, void *out, size_t n)
{
    bool inside = at <= size && n <= size - at;
    if (inside)
        memcpy(out, (const char *)bytes + at, n);
    return inside;
}

// Those of the compiler itself (divisions, square roots) call nothing.
static bool is_called(const Elf64_Sym *symbol, const char *names, size_t room)
{
    static const char internal[] = "$__internal_";
    size_t n = sizeof internal - 1;
    bool own = symbol->st_name < room && n <= room - symbol->st_name &&
               memcmp(names + symbol->st_name, internal, n) == 0;
    return ELF64_ST_TYPE(symbol->st_info) == STT_FUNC && !(symbol->st_other & STO_ENTRY) && !own;
}

static bool has_called(const void *bytes, size_t size, const Elf64_Shdr *symbols,
                       const Elf64_Shdr *names)
{
    const char *text = (const char *)bytes + names->sh_offset;
    bool whole = names->sh_offset <= size && names->sh_size <= size - names->sh_offset;
    Elf64_Sym symbol;
    for (uint64_t at = 0; whole && at + sizeof symbol <= symbols->sh_size; at += sizeof symbol) {
        if (!reads(bytes, size, symbols->sh_offset + at, &symbol, sizeof symbol))
            return true;
        if (is_called(&symbol, text, names->sh_size))
            return true;
    }
    return !whole;
}

// What cannot be read may have some.
static bool elf_has_calls(const void *bytes, size_t size)
{
    Elf64_Ehdr head;
    Elf64_Shdr symbols, names;
    if (!reads(bytes, size, 0, &head, sizeof head) || head.e_shoff > size ||
        head.e_shentsize != sizeof symbols)
        return true;
    for (unsigned i = 0; i < head.e_shnum; i++) {
        if (!reads(bytes, size, head.e_shoff + i * sizeof symbols, &symbols, sizeof symbols))
            return true;
        if (symbols.sh_type == SHT_SYMTAB)
            return symbols.sh_link >= head.e_shnum ||
                   !reads(bytes, size, head.e_shoff + symbols.sh_link * sizeof names, &names,
                          sizeof names) ||
                   has_called(bytes, size, &symbols, &names);
    }
    return true;
}

bool cuda_context_has_calls(const void *bytes, size_t size)
{
    bool elf = size >= SELFMAG && memcmp(bytes, ELFMAG, SELFMAG) == 0;
    return elf ? elf_has_calls(bytes, size) : memmem(bytes, size, ".func", 5) != NULL;
}

// --- its size

struct nvml_process { // nvmlProcessInfo_v2_t
    unsigned pid;
    unsigned long long used;
    unsigned instance, compute_instance;
};

// The functions of libnvidia-ml.so.1 that are needed here.
struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *uuid, void **device);
    int (*list)(void *device, unsigned *n, struct nvml_process *out);
};

static bool load(struct nvml *nvml, void *library)
{
    *(void **)&nvml->init = dlsym(library, "nvmlInit_v2");
    *(void **)&nvml->shutdown = dlsym(library, "nvmlShutdown");
    *(void **)&nvml->find = dlsym(library, "nvmlDeviceGetHandleByUUID");
    *(void **)&nvml->list = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    return nvml->init && nvml->shutdown && nvml->find && nvml->list;
}

static uint64_t find_own(const struct nvml *nvml, const char *uuid)
{
    enum { MOST = 1024 };
    struct nvml_process *all = mem_zalloc(MOST, sizeof *all);
    void *device = NULL;
    unsigned n = MOST;
    uint64_t used = 0;
    if (nvml->find(uuid, &device) != 0 || nvml->list(device, &n, all) != 0)
        n = 0;
    for (unsigned i = 0; i < n && i < MOST; i++)
        if (all[i].pid == (unsigned)getpid() && all[i].used != UINT64_MAX)
            used = all[i].used;
    free(all);
    return used;
}

uint64_t cuda_context_size(const char *uuid)
{
    struct nvml nvml;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    uint64_t used = 0;
    if (library && load(&nvml, library) && nvml.init() == 0) {
        used = find_own(&nvml, uuid);
        nvml.shutdown();
    }
    if (library)
        dlclose(library);
    return used;
}
