#pragma once

// The daemon's side of the page of versions (base/version_page.h): made when the first client asks
// for it, kept to the daemon's end, over upgrades too.

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct version_page;

// Zeroed: there is none yet.
struct published {
    struct version_page *page;
    int fd;           // of the page
    int shared_fd;    // the same, for clients: nothing can be written through it
    uint32_t n_given; // slots
};

// Makes the page, unless it is there.
bool published_open(struct published *p, struct opd_err *err);
// The page of the program before is this one's; takes the descriptor over. False: it is none.
bool published_resume(struct published *p, int fd);
void published_end(struct published *p); // says that the daemon ends
void published_finish(struct published *p);

// A slot that is nobody's, from 1 up; 0 with an error: there is none left.
uint32_t published_give(struct published *p, struct opd_err *err);
bool published_full(const struct published *p); // there is none left
// Writes a slot's word; nothing for slot 0.
void published_set(struct published *p, uint32_t slot, uint32_t version, uint64_t failure);
