#include "base/version_page.h"

#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

bool version_page_lives(const struct version_page *p)
{
    struct version_page *page =
        (struct version_page *)(uintptr_t)p; // loads of atomics take no const
    return !atomic_load_explicit(&page->ended, memory_order_acquire) &&
           !(atomic_load_explicit(&page->owner.word, memory_order_acquire) & FUTEX_OWNER_DIED);
}

const struct version_page *version_page_open(int fd, struct opd_err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_size < (off_t)sizeof(struct version_page)) {
        opd_err_set(err, OPD_E_malformed_message, "the descriptor is of no page of versions");
        return NULL;
    }
    struct version_page *p = mmap(NULL, sizeof *p, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        opd_err_errno(err, OPD_E_out_of_memory, "the page of versions");
        return NULL;
    }
    if (memcmp(p->magic, "opdpage", 8) == 0 && p->layout == VERSION_PAGE_LAYOUT &&
        p->n_slots == VERSION_PAGE_SLOTS)
        return p;
    opd_err_set(err, OPD_E_malformed_message,
                "the page of versions has another layout; update the older one of daemon and "
                "client");
    version_page_close(p);
    return NULL;
}

void version_page_close(const struct version_page *p)
{
    if (p)
        munmap((void *)(uintptr_t)p, sizeof *p);
}
