#include "kernels/published.h"

#include <assert.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/fdpass.h"
#include "base/file.h"
#include "base/version_page.h"

static_assert(offsetof(pthread_mutex_t, __data.__lock) == 0, "the kernel marks the first word");
static_assert(sizeof(pthread_mutex_t) <= sizeof((struct version_page *)0)->owner,
              "the mutex has room");

// Who opens the file anew, by the name that /proc has for it, gets what its mode allows: so a
// descriptor that can only read stays one that can only read.
static bool share(struct published *p)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", p->fd);
    if (fchmod(p->fd, S_IRUSR) != 0)
        return false;
    p->shared_fd = open(path, O_RDONLY | O_CLOEXEC);
    return p->shared_fd >= 0;
}

// Held from here to the end of the process, however it comes.
static void hold(struct version_page *page)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&page->owner.mutex, &attr);
    pthread_mutex_lock(&page->owner.mutex);
    pthread_mutexattr_destroy(&attr);
}

static bool map(struct published *p)
{
    void *page = mmap(NULL, sizeof *p->page, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
    if (page == MAP_FAILED)
        return false;
    p->page = page;
    return true;
}

static void drop(struct published *p)
{
    if (p->page)
        munmap(p->page, sizeof *p->page);
    file_close(&p->shared_fd);
    file_close(&p->fd);
    *p = (struct published){ 0 };
}

static void fill(struct version_page *page)
{
    memcpy(page->magic, "opdpage", 8);
    page->layout = VERSION_PAGE_LAYOUT;
    page->n_slots = VERSION_PAGE_SLOTS;
    while (getrandom(page->boot, sizeof page->boot, 0) != sizeof page->boot)
        ;
}

bool published_open(struct published *p, struct opd_err *err)
{
    if (p->page)
        return true;
    p->shared_fd = -1;
    p->fd = fdpass_claim(fdpass_memfd("opd-versions", sizeof *p->page));
    if (p->fd >= 0 && map(p) && share(p)) {
        fill(p->page);
        hold(p->page);
        return true;
    }
    opd_err_errno(err, OPD_E_unavailable, "no page of versions");
    drop(p);
    return false;
}

bool published_resume(struct published *p, int fd)
{
    struct stat st;
    p->fd = fd;
    p->shared_fd = -1;
    if (fstat(p->fd, &st) < 0 || st.st_size != (off_t)sizeof *p->page || !map(p) || !share(p))
        return false;
    hold(p->page);
    return memcmp(p->page->magic, "opdpage", 8) == 0;
}

void published_end(struct published *p)
{
    if (p->page)
        atomic_store_explicit(&p->page->ended, 1, memory_order_release);
}

void published_finish(struct published *p)
{
    if (!p->page)
        return;
    pthread_mutex_unlock(&p->page->owner.mutex);
    drop(p);
}

bool published_full(const struct published *p)
{
    return p->n_given + 1 >= VERSION_PAGE_SLOTS;
}

uint32_t published_give(struct published *p, struct opd_err *err)
{
    if (!published_full(p))
        return ++p->n_given;
    opd_err_set(err, OPD_E_unavailable, "all %d slots of the page of versions are in use",
                VERSION_PAGE_SLOTS - 1);
    return 0;
}

void published_set(struct published *p, uint32_t slot, uint32_t version, uint64_t failure)
{
    uint64_t word = (uint64_t)(uint32_t)failure << 32 | version;
    if (slot && p->page) // none where a state is only looked at
        atomic_store_explicit(&p->page->words[slot], word, memory_order_release);
}
