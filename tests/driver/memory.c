#include "standin.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// Device memory is a memfd, so that it goes to other processes as the driver's does; an address of
// the device is one of this process. What is reserved and not mapped may not be touched.

// What it says that it has is enough for a spare executor beside the one that serves; others have
// all but what there is.
enum { GRANULARITY = 2 << 20, MOST_MEMORY_GIB = 4, SAID_MEMORY_GIB = 64 };

// A piece of device memory as this process has it: by handles, by mappings, or both.
struct memory {
    struct memory *next;
    int fd;
    size_t size;
    ino_t inode;
    int refs;
};

struct mapping {
    struct mapping *next;
    uint64_t addr;
    size_t size;
    struct memory *memory; // NULL: a reservation
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct memory *memories;
static struct mapping *mappings, *reservations;
static struct range *ranges; // sorted
static size_t n_ranges, room;
static _Atomic unsigned generation;

// --- what kernels may touch

unsigned memory_generation(void)
{
    return atomic_load(&generation);
}

// The first range that ends behind the address.
static size_t seek(uint64_t addr)
{
    size_t low = 0, high = n_ranges;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].end <= addr)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool memory_find(uint64_t addr, struct range *out)
{
    pthread_mutex_lock(&lock);
    size_t i = seek(addr);
    bool found = i < n_ranges && ranges[i].start <= addr;
    if (found)
        *out = ranges[i];
    pthread_mutex_unlock(&lock);
    return found;
}

static void add_range(uint64_t addr, size_t size)
{
    if (n_ranges == room) {
        room = room ? 2 * room : 64;
        ranges = realloc(ranges, room * sizeof *ranges);
        if (!ranges)
            abort();
    }
    size_t i = seek(addr);
    memmove(ranges + i + 1, ranges + i, (n_ranges - i) * sizeof *ranges);
    ranges[i] = (struct range){ addr, addr + size };
    n_ranges++;
    atomic_fetch_add(&generation, 1);
}

static bool remove_range(uint64_t addr)
{
    size_t i = seek(addr);
    if (i == n_ranges || ranges[i].start != addr)
        return false;
    memmove(ranges + i, ranges + i + 1, (n_ranges - i - 1) * sizeof *ranges);
    n_ranges--;
    atomic_fetch_add(&generation, 1);
    return true;
}

void memory_add(uint64_t addr, size_t size)
{
    pthread_mutex_lock(&lock);
    add_range(addr, size);
    pthread_mutex_unlock(&lock);
}

void memory_remove(uint64_t addr)
{
    pthread_mutex_lock(&lock);
    remove_range(addr);
    pthread_mutex_unlock(&lock);
}

bool memory_is_reserved(uint64_t addr)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    for (struct mapping *r = reservations; r && !found; r = r->next)
        found = addr >= r->addr && addr - r->addr < r->size;
    pthread_mutex_unlock(&lock);
    return found;
}

bool memory_window(uint64_t *out, size_t size)
{
    void *at = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *out = (uintptr_t)at;
    return at != MAP_FAILED;
}

// --- memory by handles

static size_t real_memory(void)
{
    size_t most = (size_t)MOST_MEMORY_GIB << 30;
    size_t have = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) / 2;
    return (most < have ? most : have) / GRANULARITY * GRANULARITY;
}

static size_t used_memory(void)
{
    size_t used = 0;
    for (struct memory *m = memories; m; m = m->next)
        used += m->size;
    return used;
}

// Takes the descriptor. The same memory that comes twice is one.
static struct memory *ref_memory(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return NULL;
    for (struct memory *m = memories; m; m = m->next)
        if (m->inode == st.st_ino) {
            close(fd);
            m->refs++;
            return m;
        }
    struct memory *m = malloc(sizeof *m);
    if (!m)
        abort();
    *m = (struct memory){ memories, fd, (size_t)st.st_size, st.st_ino, 1 };
    return memories = m;
}

static void unref_memory(struct memory *memory)
{
    if (--memory->refs > 0)
        return;
    for (struct memory **m = &memories; *m; m = &(*m)->next)
        if (*m == memory) {
            *m = memory->next;
            break;
        }
    close(memory->fd);
    free(memory);
}

int cuMemGetInfo_v2(size_t *free_size, size_t *total_size)
{
    RETURN_IF_BROKEN();
    pthread_mutex_lock(&lock);
    size_t used = used_memory();
    pthread_mutex_unlock(&lock);
    *total_size = (size_t)SAID_MEMORY_GIB << 30;
    *free_size = used < real_memory() ? real_memory() - used : 0;
    return DRV_SUCCESS;
}

int cuMemGetAllocationGranularity(size_t *granularity, const struct drv_alloc_prop *prop,
                                  enum drv_granularity option)
{
    (void)option;
    *granularity = GRANULARITY;
    return prop->location.id == 0 ? DRV_SUCCESS : DRV_ERROR_INVALID_VALUE;
}

int cuMemCreate(drv_handle *handle, size_t size, const struct drv_alloc_prop *prop,
                unsigned long long flags)
{
    RETURN_IF_BROKEN();
    if (size == 0 || size % GRANULARITY || flags || prop->handle_types != DRV_HANDLE_POSIX_FD)
        return DRV_ERROR_INVALID_VALUE;
    int fd = memfd_create("standin-device", MFD_CLOEXEC), result = DRV_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    if (fd >= 0 && used_memory() + size <= real_memory() && ftruncate(fd, (off_t)size) == 0) {
        *handle = (uintptr_t)ref_memory(fd);
        result = DRV_SUCCESS;
    } else if (fd >= 0) {
        close(fd);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

int cuMemRelease(drv_handle handle)
{
    pthread_mutex_lock(&lock);
    unref_memory((struct memory *)(uintptr_t)handle);
    pthread_mutex_unlock(&lock);
    return context_error();
}

int cuMemExportToShareableHandle(void *shared, drv_handle handle, enum drv_handle_type type,
                                 unsigned long long flags)
{
    RETURN_IF_BROKEN();
    if (type != DRV_HANDLE_POSIX_FD || flags)
        return DRV_ERROR_INVALID_VALUE;
    int fd = fcntl(((struct memory *)(uintptr_t)handle)->fd, F_DUPFD_CLOEXEC, 3);
    memcpy(shared, &fd, sizeof fd);
    return fd >= 0 ? DRV_SUCCESS : DRV_ERROR_OUT_OF_MEMORY;
}

int cuMemImportFromShareableHandle(drv_handle *handle, void *shared, enum drv_handle_type type)
{
    RETURN_IF_BROKEN();
    int fd = fcntl((int)(intptr_t)shared, F_DUPFD_CLOEXEC, 3);
    if (fd < 0 || type != DRV_HANDLE_POSIX_FD)
        return DRV_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct memory *m = ref_memory(fd);
    pthread_mutex_unlock(&lock);
    *handle = (uintptr_t)m;
    return m ? DRV_SUCCESS : DRV_ERROR_INVALID_VALUE;
}

// --- addresses

static void push_mapping(struct mapping **list, uint64_t addr, size_t size, struct memory *memory)
{
    struct mapping *m = malloc(sizeof *m);
    if (!m)
        abort();
    *m = (struct mapping){ *list, addr, size, memory };
    *list = m;
}

// Frees what is taken off; its memory, if any, is the caller's.
static bool take_mapping(struct mapping **list, uint64_t addr, size_t size, struct memory **out)
{
    for (struct mapping **m = list; *m; m = &(*m)->next) {
        struct mapping *found = *m;
        if (found->addr != addr || found->size != size)
            continue;
        *m = found->next;
        *out = found->memory;
        free(found);
        return true;
    }
    return false;
}

// Addresses alone, at a multiple of the granularity.
static uint64_t reserve(size_t size)
{
    uint64_t at;
    if (!memory_window(&at, size + GRANULARITY))
        return 0;
    uint64_t start = (at + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
    if (start > at)
        munmap((void *)(uintptr_t)at, start - at);
    munmap((void *)(uintptr_t)(start + size), at + GRANULARITY - start);
    return start;
}

int cuMemAddressReserve(drv_addr *addr, size_t size, size_t alignment, drv_addr hint,
                        unsigned long long flags)
{
    RETURN_IF_BROKEN();
    (void)hint;
    if (size == 0 || size % GRANULARITY || alignment > GRANULARITY || flags)
        return DRV_ERROR_INVALID_VALUE;
    *addr = reserve(size);
    if (*addr == 0)
        return DRV_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    push_mapping(&reservations, *addr, size, NULL);
    pthread_mutex_unlock(&lock);
    return DRV_SUCCESS;
}

int cuMemAddressFree(drv_addr addr, size_t size)
{
    struct memory *none;
    pthread_mutex_lock(&lock);
    bool found = take_mapping(&reservations, addr, size, &none);
    pthread_mutex_unlock(&lock);
    if (!found)
        return DRV_ERROR_INVALID_VALUE;
    munmap((void *)(uintptr_t)addr, size);
    return context_error();
}

int cuMemMap(drv_addr addr, size_t size, size_t offset, drv_handle handle,
             unsigned long long flags)
{
    RETURN_IF_BROKEN();
    struct memory *m = (struct memory *)(uintptr_t)handle;
    if (offset || flags || size != m->size || !memory_is_reserved(addr))
        return DRV_ERROR_INVALID_VALUE;
    if (mmap((void *)(uintptr_t)addr, size, PROT_NONE, MAP_SHARED | MAP_FIXED, m->fd, 0) ==
        MAP_FAILED)
        return DRV_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    m->refs++;
    push_mapping(&mappings, addr, size, m);
    pthread_mutex_unlock(&lock);
    return DRV_SUCCESS;
}

int cuMemUnmap(drv_addr addr, size_t size)
{
    struct memory *m = NULL;
    pthread_mutex_lock(&lock);
    bool found = take_mapping(&mappings, addr, size, &m);
    if (found) {
        remove_range(addr);
        unref_memory(m);
        mmap((void *)(uintptr_t)addr, size, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    }
    pthread_mutex_unlock(&lock);
    return found ? context_error() : DRV_ERROR_INVALID_VALUE;
}

int cuMemSetAccess(drv_addr addr, size_t size, const struct drv_access *access, size_t count)
{
    RETURN_IF_BROKEN();
    if (count != 1 || access->flags != DRV_ACCESS_READ_WRITE ||
        mprotect((void *)(uintptr_t)addr, size, PROT_READ | PROT_WRITE) != 0)
        return DRV_ERROR_INVALID_VALUE;
    memory_add(addr, size);
    return DRV_SUCCESS;
}

// --- the older way, and the host's memory

static void *map_pages(size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    memory_add((uintptr_t)at, size);
    return at;
}

static int unmap_pages(uint64_t addr)
{
    struct range r;
    if (!memory_find(addr, &r) || r.start != addr)
        return DRV_ERROR_INVALID_VALUE;
    memory_remove(addr);
    munmap((void *)(uintptr_t)addr, r.end - r.start);
    return context_error();
}

int cuMemAlloc_v2(drv_addr *addr, size_t size)
{
    RETURN_IF_BROKEN();
    *addr = size && size <= real_memory() ? (uintptr_t)map_pages(size) : 0;
    return *addr ? DRV_SUCCESS : DRV_ERROR_OUT_OF_MEMORY;
}

int cuMemFree_v2(drv_addr addr)
{
    return unmap_pages(addr);
}

int cuMemGetAddressRange_v2(drv_addr *base, size_t *size, drv_addr addr)
{
    struct range r;
    if (!memory_find(addr, &r))
        return DRV_ERROR_INVALID_VALUE;
    *base = r.start;
    *size = r.end - r.start;
    return context_error();
}

int cuIpcOpenMemHandle_v2(drv_addr *addr, struct drv_ipc_handle handle, unsigned flags)
{
    (void)handle;
    (void)flags;
    *addr = 0;
    return CUDA_ERROR_NOT_SUPPORTED;
}

int cuIpcCloseMemHandle(drv_addr addr)
{
    (void)addr;
    return DRV_ERROR_INVALID_VALUE;
}

int cuMemHostAlloc(void **host, size_t size, unsigned flags)
{
    RETURN_IF_BROKEN();
    (void)flags;
    *host = map_pages(size);
    return *host ? DRV_SUCCESS : DRV_ERROR_OUT_OF_MEMORY;
}

int cuMemFreeHost(void *host)
{
    return unmap_pages((uintptr_t)host);
}

int cuMemHostGetDevicePointer_v2(drv_addr *addr, void *host, unsigned flags)
{
    struct range r;
    *addr = (uintptr_t)host;
    return !flags && memory_find(*addr, &r) ? context_error() : DRV_ERROR_INVALID_VALUE;
}

// OPD_STANDIN_LOCKS_NONE: as where a process may lock no pages.
int cuMemHostRegister_v2(void *host, size_t size, unsigned flags)
{
    RETURN_IF_BROKEN();
    struct range r;
    (void)flags;
    if (getenv("OPD_STANDIN_LOCKS_NONE"))
        return DRV_ERROR_OUT_OF_MEMORY;
    if (!host || size == 0 || memory_find((uintptr_t)host, &r))
        return DRV_ERROR_INVALID_VALUE;
    memory_add((uintptr_t)host, size);
    return DRV_SUCCESS;
}

int cuMemHostUnregister(void *host)
{
    memory_remove((uintptr_t)host);
    return context_error();
}
