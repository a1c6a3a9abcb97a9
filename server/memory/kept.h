#pragma once

// The list of named tensors: what each is and where its bytes are, in a memfd that outlives the
// daemon with the keeper (keeper/keeper.h). The next daemon reads it: upgrade/recover.h.
//
// An entry is written in place, its check last, and taken out check first: where the daemon dies in
// between, the name is missing. A storage is `open` while a request is writing it, or a client may
// by its lane, or one has failed to: whoever takes it over then knows nothing of what it holds.

#include <stdbool.h>
#include <stdint.h>

#include "executor/devwire.h"
#include "memory/tensor.h"
#include "op/op.h"

enum { KEPT_FORMAT = 1, KEPT_NAME = 256, KEPT_MOST = 1 << 20 };
enum { KEPT_NOWHERE = UINT32_MAX }; // the region of what is empty

// A device that has some, and the executor that wrote to them last.
struct kept_device {
    char name[16]; // "": none
    char uuid[44];
    int32_t executor;          // its pid, 0: none
    uint64_t executor_started; // as the kernel counts, so that another of that pid is told apart
};

struct kept_entry {
    uint64_t check; // of all that follows but `open`; 0: there is none
    uint32_t open;
    uint32_t device; // of the list's
    uint32_t region; // of that device
    int32_t rank;
    uint64_t offset, room, size; // bytes: of its piece of the region; of the tensor
    int64_t shape[OP_MAX_RANK];
    char dtype[16], name[KEPT_NAME];
};

struct kept_list; // the memfd's bytes

struct kept {
    int fd; // -1: nothing is kept
    struct kept_list *list;
    uint32_t n_room;                                    // entries that the file has room for
    uint32_t n_used;                                    // below it all are used but the free ones
    uint32_t *free, n_free;                             // grows to n_room
    uint32_t n;                                         // entries
    uint64_t bytes;                                     // of their tensors
    bool (*hold)(struct space *space, uint32_t region); // holds that, from now on
};

// A list that is empty, or one that was there: false where that is none.
bool kept_new(struct kept *k);
bool kept_resume(struct kept *k, int fd); // takes the descriptor over
void kept_finish(struct kept *k);         // zeroed with fd -1 is fine; the list stays as it is

// The tensor of that name and storage is in the list from now on, or as long as the storage has
// its name. Nothing where its space keeps nothing, or what it lies in is not the daemon's.
void kept_add(struct storage *s, const struct tensor *t);
void kept_remove(struct storage *s);
void kept_say_open(struct storage *s);

// The storage's writes, its fate, or who is armed, are others: whether it is open, if it is in the
// list.
static inline void kept_settle(struct storage *s)
{
    if (s->kept)
        kept_say_open(s);
}

// Of a list that was there. A row is the device's in the list; -1: it is not in it.
int kept_row(const struct kept *k, const char *device);
struct kept_device *kept_device(struct kept *k, int row);
// The row of a device that may be new; -1: there are too many.
int kept_add_device(struct kept *k, const char *device, const char *uuid);
// Entries whose check is right, from *cursor (0 at first) on; NULL: there are no more.
const struct kept_entry *kept_next(const struct kept *k, uint32_t *cursor);
void kept_claim(struct kept *k, const struct kept_entry *e, struct storage *s); // it is that one
void kept_forget(struct kept *k, const struct kept_entry *e);
