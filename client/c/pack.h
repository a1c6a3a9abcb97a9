#pragma once

// Packing the parameters of a request: msgpack-c's packer on a buffer that remembers a failure, so
// that it need be asked once, at the end.
//
//     struct pack p;
//     pack_init(&p, 2);
//     pack_int(&p, id);
//     pack_str(&p, name);
//     return pack_call(&p, client, "tensor_attach", NULL, err);

#include <sys/uio.h>

#include "c/opd.h"

struct pack {
    msgpack_packer mp;
    msgpack_sbuffer bytes;
    bool failed; // out of host memory
};

void pack_init(struct pack *p, size_t count); // begins an array of so many parameters

// Sends what was packed, waits for the reply, and frees what was packed.
bool pack_call(struct pack *p, struct opd_client *client, const char *method,
               struct opd_reply *reply, struct opd_error *err);

// The same, with more to its knobs: `tail` follows the packed bytes and belongs to the same array;
// `more` seconds are added to the timeout.
bool pack_call_with(struct pack *p, struct opd_client *client, const char *method,
                    struct iovec tail, double more, struct opd_reply *reply, struct opd_error *err);

void pack_int(struct pack *p, int64_t value);
void pack_str(struct pack *p, const char *text);             // NULL or "": nil
void pack_key(struct pack *p, const char *text);             // a string, an empty one too
void pack_ids(struct pack *p, const int64_t *ids, size_t n); // an array; 0 is nil
void pack_shape(struct pack *p, const struct opd_tensor *tensor);
