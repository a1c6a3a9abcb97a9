#include "executor/prints.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

static struct {
    struct dev_prints *at; // NULL: the standard output
    const struct dev_progress *progress;
    pthread_mutex_t lock; // nothing that may fault happens under it
    bool captured;        // the standard output is a file of ours
    bool muted;
} prints = { .lock = PTHREAD_MUTEX_INITIALIZER };

void prints_attach(struct dev_prints *at, const struct dev_progress *progress)
{
    prints.at = at;
    prints.progress = progress;
}

void prints_mute(bool mute)
{
    prints.muted = mute;
}

// `size` bytes were printed, of which `kept` are there.
static void add(const char *text, size_t kept, size_t size)
{
    struct dev_prints *p = prints.at;
    pthread_mutex_lock(&prints.lock);
    size_t at = atomic_load(&p->size), dropped = atomic_load(&p->dropped);
    if (at == 0 && dropped == 0)
        atomic_store(&p->seq, atomic_load(&prints.progress->taken));
    size_t room = dropped || at > DEV_MAX_PRINTED ? 0 : DEV_MAX_PRINTED - at; // none behind a gap
    size_t n = kept < room ? kept : room;
    memcpy(p->text + at, text, n);
    atomic_store(&p->size, at + n);
    atomic_store(&p->dropped, dropped + size - n);
    pthread_mutex_unlock(&prints.lock);
}

int prints_format(const char *format, va_list args)
{
    char small[1024], *text = small;
    va_list again;
    if (prints.muted)
        return 0;
    if (!prints.at)
        return vprintf(format, args);
    va_copy(again, args);
    int n = vsnprintf(small, sizeof small, format, args);
    size_t size = n > 0 ? (size_t)n : 0, kept = size;
    if (size >= sizeof small) {
        kept = size < DEV_MAX_PRINTED ? size : DEV_MAX_PRINTED;
        text = mem_alloc(kept + 1);
        vsnprintf(text, kept + 1, format, again);
    }
    va_end(again);
    add(text, kept, size);
    if (text != small)
        free(text);
    return n;
}

void prints_capture(void)
{
    int fd = memfd_create("opd-printed", MFD_CLOEXEC);
    prints.captured = fd >= 0 && dup2(fd, STDOUT_FILENO) >= 0;
    if (!prints.captured)
        log_warn("what kernels print stays in this log: no file for it");
    if (fd >= 0)
        close(fd);
}

void prints_collect(void)
{
    char text[4096];
    off_t end = 0, at = 0;
    if (!prints.captured || !prints.at)
        return;
    fflush(stdout);
    end = lseek(STDOUT_FILENO, 0, SEEK_CUR);
    for (ssize_t n = 1; at < end && n > 0; at += n) {
        n = pread(STDOUT_FILENO, text, sizeof text, at);
        if (n > 0)
            add(text, (size_t)n, (size_t)n);
    }
    if (end > 0 && ftruncate(STDOUT_FILENO, 0) == 0)
        lseek(STDOUT_FILENO, 0, SEEK_SET);
}

bool prints_any(void)
{
    return prints.at && atomic_load_explicit(&prints.at->size, memory_order_relaxed) > 0;
}

size_t prints_of(uint64_t seq)
{
    return prints_any() && atomic_load(&prints.at->seq) == seq ? atomic_load(&prints.at->size) : 0;
}

uint64_t prints_read(char *out, size_t size)
{
    memcpy(out, prints.at->text, size);
    return atomic_load(&prints.at->dropped);
}

void prints_clear(void)
{
    atomic_store(&prints.at->size, 0);
    atomic_store(&prints.at->dropped, 0);
}
