#pragma once

// The argument bytes of one launch: a layout as that of a C struct, values in place, slots where
// addresses go. Bounded by OP_MAX_ARGS_SIZE and SIGNATURE_MAX_PARAMS, and reused from launch to
// launch.

#include "op/body.h"
#include "base/mem.h"

// An argument, or a member of one, that only attributes say.
struct packed_value {
    uint32_t offset;
    struct cnumber type;
    const struct expr *expr;
};

// What `chunks` fills, which is zero.
struct packed_array {
    const struct argument *arg;
    uint32_t offset;
};

enum { PACKED_MAX_ARRAYS = 16 };

struct packed {
    int n_params, n_slots, n_values, n_arrays, depth; // of structs that are open
    uint32_t size, last;                              // where what came last begins
    struct plan_param params[SIGNATURE_MAX_PARAMS];
    struct plan_slot slots[SIGNATURE_MAX_PARAMS]; // operand: the tensor's id
    struct packed_value values[SIGNATURE_MAX_PARAMS];
    struct packed_array arrays[PACKED_MAX_ARRAYS];
    _Alignas(16) uint8_t bytes[OP_MAX_ARGS_SIZE];
};

void packed_start(struct packed *p); // nothing is in it
// So many more bytes, zero, at the next multiple of `align`. NULL: that is more than a launch
// takes.
void *packed_put(struct packed *p, uint32_t size, uint32_t align);
bool packed_put_slot(struct packed *p, int tensor); // the next 8 bytes are the tensor's address
// The bytes at `at`, which packed_put() gave, are the value of that expression, which read these.
// Where there are too many such values, what this one read is fixed.
void packed_note_value(struct packed *p, const void *at, struct cnumber type, const struct expr *e,
                       uint64_t reads, const struct env *env);

// What the compiler must find true of the structs among the arguments, as C++ behind the source:
// that their members lie where params_pack() puts them. Appends to `out`.
void params_check_structs(const struct step *launch, const struct env *env, const char *kernel,
                          struct buf *out);
// All of a kernel's arguments for the request in env. Errors: a value that does not fit its
// parameter's type, an accessor of another rank, too many bytes; they name the kernel.
bool params_pack(const struct step *launch, const struct env *env, struct packed *out,
                 struct opd_err *err);
