#pragma once

// A fault, kept: what ran, on what, and what was said of it. One file: lines of words, then the
// operator's source, then the bytes of its tensors. The broker writes it (request/faults.h), and a
// trial runs it again (trial/trial_replay.h).
//
//   opd fault 1 SIZE            of the whole file: a torn one has another
//   time, device, version, file, op, message
//   request DIRECTION KEEP WANTED GRAD_ABSENT
//   list INPUT N                an input that is a list, and of how many
//   input INDEX DTYPE RANK SHAPE... [STRIDES...]
//   attr NAME none | ints N... | floats N... | bool N | word WORD
//   tensor KIND INDEX SIZE      whose bytes come, in this order
//   source SIZE WHOLE_SIZE      the end of the lines: the file's text, that with its includes

#include "op/arena.h"
#include "op/plan.h"

enum { BUNDLE_MAX_MESSAGE = 1024, BUNDLE_MAX_SIZE = 1 << 30 };

struct bundle_tensor {
    enum plan_operand_kind kind;
    int index; // an operand's
    uint64_t size;
    const uint8_t *bytes; // borrowed
};

struct bundle {
    double time; // Unix time
    char device[16];
    char op[OP_MAX_NAME], file[256];
    int version;
    char message[BUNDLE_MAX_MESSAGE]; // one line
    uint64_t size;                    // of the file
    const char *source, *whole;       // borrowed, not terminated
    size_t source_size, whole_size;
    int n_tensors;
    struct bundle_tensor *tensors;
    // What the plan was made for. Of one that is read it is bundle_read_request()'s.
    const struct plan_request *request;

    struct arena room; // of one that is read
    const char *lines; // of the request, in the file
};

void bundle_write(const struct bundle *b, struct buf *out);

// Of a file's bytes, which stay the caller's and are to outlive it. Errors: invalid_argument. The
// caller finishes it, also then.
bool bundle_read(struct bundle *b, const uint8_t *bytes, size_t size, struct opd_err *err);
// The request, of that operator: it is what the source says.
bool bundle_read_request(struct bundle *b, const struct op *op, struct opd_err *err);
void bundle_finish(struct bundle *b);
