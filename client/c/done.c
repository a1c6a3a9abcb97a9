#include "c/done.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "c/client.h"

enum { ASKED = 16, SIZE = 4096 }; // for a few waits it is not worth a page

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
    pack_int(&p, DONE_SHM);
    pack_int(&p, SIZE);
    struct iovec parts[2] = { { p.bytes.data, p.bytes.size } };
    bool good = !p.failed && client_send(c, "shm_open", parts, fd, &request, NULL) &&
                client_wait(c, request, 0, NULL, NULL);
    pack_finish(&p);
    if (!good)
        return false;
    pack_init(&p, 2);
    pack_int(&p, DONE_SHM);
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

static bool begin(struct opd_client *c)
{
    struct done *done = &c->done;
    if (!done->word && !done->refused && ++done->n_asked == ASKED)
        share(c);
    // Else one of the requests may be what it would tell of.
    return !c->requests && done->word && word_begin(done->word, &done->waits);
}

static void leave(struct opd_client *c)
{
    if (c->done.word)
        word_leave(c->done.word);
}

bool done_wait_for(struct opd_client *c, struct word *word, struct word_waits *waits)
{
    uint64_t now = clock_ns();
    if (c->spin.wanted)
        spin_begin(&c->spin, now);
    while (c->spin.wanted && word_is_awaited(word) && spin_on(&c->spin, now))
        now = clock_ns();
    if (c->spin.wanted)
        spin_end(&c->spin, now);
    return word_wait(word, waits);
}

bool done_run(struct opd_client *c, const char *method, struct pack *params, double more,
              struct opd_reply *reply, struct opd_error *err)
{
    uint32_t request;
    bool awaited = begin(c);
    if (!client_send_packed(c, method, params, (struct iovec){ 0 }, &request, err)) {
        leave(c);
        return false;
    }
    if (awaited && done_wait_for(c, c->done.word, &c->done.waits)) {
        client_drop(c, request);
        return true;
    }
    bool good = client_wait(c, request, more, reply, err);
    client_forget(c, request);
    return good;
}
