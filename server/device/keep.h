#pragma once

// The broker's end of its keeper (keeper/keeper.h): starts it when the first tensor gets a name,
// hands it the descriptors of the memory in which named tensors lie, and starts another where it
// ends. The list of names is memory/kept.h's.

#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>
#include <uv.h>

#include "base/err.h"
#include "keeper/keeper.h"
#include "memory/kept.h"

struct device;
struct devices;

struct keep {
    struct kept kept;
    uv_poll_t *poll;     // of sock, on the loop
    uv_timer_t *again;   // until there may be another keeper; NULL: none is wanted
    int sock;            // -1: there is no keeper
    int pid;             // 0: it has not said
    double seconds;      // for which it keeps; 0: nothing is kept
    char *path;          // of its socket
    int pins_fd;         // a memfd of what it holds beside memory; -1: nothing
    uint64_t started_at; // clock_ns(), of the last that this program has started
};

// A descriptor that the keeper of a daemon before had, and what it is of.
struct keep_given {
    struct keeper_message what;
    int fd;
};

void keep_init(struct devices *all, const char *socket, double seconds); // 0: nothing is kept
void keep_begin(struct devices *all); // named tensors of all devices that there are, from now on
// The program ends, or only this one's part in it: what is kept is not.
void keep_close(struct devices *all);
// Nothing is kept any more: the daemon ends as it was told to.
void keep_over(struct devices *all);

// Operators that are pinned, as bytes, in place of those of before; none: size 0.
void keep_pins(struct devices *all, const void *bytes, size_t size);
void keep_executor(struct device *d); // it has another one
void keep_dropped(struct device *d, uint32_t region);
void keep_exported(struct device *d, uint32_t region);

// What a daemon before has left with a keeper, which is this one's from now on. The list is among
// it, and in `kept`. 0 where there is nothing; the caller frees *out, and the descriptors are its.
// Errors: unavailable: it is there and cannot be taken now.
size_t keep_take_back(struct devices *all, struct keep_given **out, struct opd_err *err);
// Waits for the end of the executors that the list names: till then they may write.
bool keep_await_executors(struct kept *k, struct opd_err *err);

// After an upgrade: the keeper and the list go on.
bool keep_resume(struct devices *all, int sock, int list_fd);

// --- what keep_take.c needs of keep.c

struct sockaddr_un keep_address(const char *path);
void keep_limit_waiting(int sock, int seconds);
void keep_adopt(struct devices *all); // its socket leads to a keeper: listens to that
