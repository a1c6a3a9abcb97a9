#include "c/done.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "c/client.h"

// ASKED: for a few waits it is not worth a page. MISSES in a row: the next so many waits are for
// replies; and so is one of EACH, since notifications are read with these.
enum { ASKED = 16, MISSES = 3, PASSED = 256, EACH = 64 };
enum { SIZE = 4096 };

// As long as what is told by a reply is kept waiting at most.
static const uint64_t MOST_NS = 300000;

// No other shared memory of the connection is called so.
static const int64_t SHM = INT64_MAX;

void done_finish(struct done *done)
{
    if (done->word)
        munmap(done->word, SIZE);
    *done = (struct done){ 0 };
}

static bool offer(struct opd_client *c, int fd)
{
    struct pack p;
    uint32_t request;
    pack_init(&p, 2);
    pack_int(&p, SHM);
    pack_int(&p, SIZE);
    struct iovec parts[2] = { { p.bytes.data, p.bytes.size } };
    bool good = !p.failed && client_send(c, "shm_open", parts, fd, &request, NULL) &&
                client_wait(c, request, 0, NULL, NULL);
    pack_finish(&p);
    if (!good)
        return false;
    pack_init(&p, 2);
    pack_int(&p, SHM);
    pack_int(&p, 0);
    return client_call(c, "done_word", &p, NULL, NULL);
}

static void share(struct opd_client *c)
{
    int fd = memfd_create("opd-done", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    void *memory = MAP_FAILED;
    c->done.refused = true;
    if (fd < 0)
        return;
    if (ftruncate(fd, SIZE) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0)
        memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    bool good = memory != MAP_FAILED && offer(c, fd);
    close(fd);
    if (good)
        c->done.word = memory;
    else if (memory != MAP_FAILED)
        munmap(memory, SIZE);
}

bool done_begin(struct opd_client *c)
{
    struct done *done = &c->done;
    if (c->requests) // one of these may be what it would tell of
        return false;
    if (++done->n_asked == ASKED && !done->refused)
        share(c);
    bool passed = done->n_passed > 0 || done->n_asked % EACH == 0;
    done->n_passed -= done->n_passed > 0;
    if (!done->word || passed)
        return false;
    word_await(done->word);
    return true;
}

bool done_wait(struct opd_client *c)
{
    struct done *done = &c->done;
    uint64_t begin = clock_ns(), now = begin;
    if (c->spin.wanted)
        spin_begin(&c->spin, begin);
    while (c->spin.wanted && word_is_awaited(done->word) && spin_on(&c->spin, now))
        now = clock_ns();
    if (c->spin.wanted)
        spin_end(&c->spin, now);
    // A signal ends the sleep.
    while (word_is_awaited(done->word) && now - begin < MOST_NS) {
        word_sleep(done->word, MOST_NS - (now - begin));
        now = clock_ns();
    }
    bool told = word_leave(done->word);
    done->n_missed = told ? 0 : done->n_missed + 1;
    if (done->n_missed < MISSES)
        return told;
    done->n_missed = 0;
    done->n_passed = PASSED;
    return false;
}
