#pragma once

// Packing the parameters of a request: msgpack-c's packer on a buffer that remembers a failure, so
// that it need be asked once, at the end. opctl packs with it too.
//
//     struct pack p;
//     pack_init(&p, 2);
//     pack_int(&p, id);
//     pack_str(&p, name);
//     return client_call(client, "tensor_attach", &p, NULL, err); // frees what was packed

#include <stdbool.h>
#include <stdint.h>

#include <msgpack.h>

struct pack {
    msgpack_packer mp;
    msgpack_sbuffer bytes;
    bool failed; // out of host memory
};

void pack_init(struct pack *p, size_t count); // begins an array of so many parameters
void pack_begin(struct pack *p);              // begins without one
void pack_finish(struct pack *p);

void pack_int(struct pack *p, int64_t value);
void pack_bool(struct pack *p, bool value);
void pack_nil(struct pack *p);
void pack_text(struct pack *p, const char *text, size_t size);
void pack_str(struct pack *p, const char *text);        // an empty one too
void pack_str_or_nil(struct pack *p, const char *text); // NULL or "": nil
void pack_ints(struct pack *p, const int64_t *values, size_t n);
void pack_ids(struct pack *p, const int64_t *ids, size_t n);     // an array; 0 is nil

// Ids of arguments, some of them lists: how many each has, or OPD_SINGLE. `lengths` NULL: none is.
struct id_lists {
    const int64_t *ids, *lengths;
    size_t count, length_count;
};
size_t id_lists_arguments(const struct id_lists *l);
size_t id_lists_length(const struct id_lists *l, size_t argument); // ids of it
bool id_lists_is_list(const struct id_lists *l, size_t argument);
void pack_arguments(struct pack *p, const struct id_lists *l); // elements of an array
void pack_list(struct pack *p, const char *list);                // "a,b": an array of strings
void pack_map(struct pack *p, size_t count);                     // so many keys and values follow
