#pragma once

// The page of versions: read-only memory of a daemon, in which a client that runs operators by
// itself sees, by one load, whether what it has is what the daemon serves.
//
//     uint64_t word = version_page_word(page, slot);
//     if ((uint32_t)word == plan_version) ...     // run it
//
// An operator gets its slot with the first export of a plan, and keeps it: over edits, over
// withdrawals, and over upgrades of the daemon. One that a client has loaded gives it back. The
// word is written before the reply to `reload`, `rollback` or `pin` is sent. The page ends with its
// daemon: version_page_lives() is false then, and another daemon has another page.
//
// A slot is from 1 to n_slots - 1.

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { VERSION_PAGE_LAYOUT = 1, VERSION_PAGE_SLOTS = 1 << 14 };

struct version_page {
    char magic[8]; // "opdpage"
    uint32_t layout, n_slots;
    uint64_t boot[2]; // random: which daemon
    _Atomic uint32_t ended;
    // A robust mutex that the daemon's process holds for its life: where it dies without a word,
    // the kernel says so in the mutex's first word.
    _Alignas(64) union {
        pthread_mutex_t mutex;
        _Atomic uint32_t word;
        uint8_t room[64];
    } owner;
    // Lower half: the number of the version that serves, as its plans have it (exported.h), 0 where
    // none does; of one that a client has loaded it is no other's. Upper half: changes
    // with each edit that fails, and is 0 once one has been served.
    _Alignas(64) _Atomic uint64_t words[VERSION_PAGE_SLOTS];
};

static inline uint64_t version_page_word(const struct version_page *p, uint32_t slot)
{
    return atomic_load_explicit(&((struct version_page *)(uintptr_t)p)->words[slot],
                                memory_order_acquire);
}

// Whether its daemon is there. Between the two programs of an upgrade it may seem to be gone.
bool version_page_lives(const struct version_page *p);

// Maps the page read-only. Does not take the descriptor over. NULL with an error:
// malformed_message.
const struct version_page *version_page_open(int fd, struct opd_err *err);
void version_page_close(const struct version_page *p); // NULL is fine
