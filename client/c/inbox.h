#pragma once

// The bytes that have come and not been taken, and where in them the messages end.

#include "base/mpscan.h"
#include "c/opd.h"

struct inbox { // zeroed is empty
    char *bytes;
    size_t begin, end; // what is there
    size_t capacity;
    struct mpscan scan; // of the message at `begin`
};

void inbox_finish(struct inbox *in);

// Takes in what the socket has now. False at the end of the stream and on a failure.
bool inbox_receive(struct inbox *in, int fd, struct opd_error *err);

// Copies the next whole message out; the caller frees *bytes. MPSCAN_MORE: there is none yet.
// MPSCAN_INVALID fills the error.
enum mpscan_result inbox_take(struct inbox *in, char **bytes, size_t *size, struct opd_error *err);
