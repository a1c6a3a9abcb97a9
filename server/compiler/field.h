#pragma once

// The headers of the field that a pasted kernel includes, as opd has them: its own texts, which lie
// in kernels_src/include/ and are linked into the binary, and empty ones where opd.cuh says enough,
// or only host code needs what they have. field.def lists their names.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct host_token;

struct field_header {
    const char *file; // "opd-cub.cuh", as compilers and people see it
    const char *text; // "": nothing is needed
    bool nvidia;      // they have one of that name
};

// The header that `name` ("cub/cub.cuh>...", up to a '>' or '"') asks for. False: none of these.
bool field_find(const char *name, struct field_header *out);

// The name in a directive that includes something, up to a '>' or '"'; NULL: it does not.
const char *field_included(const struct host_token *directive);

// Calls `visit` for each header of the field that the source includes, by the name that it uses,
// and that those include: each name once.
typedef void field_visit(const char *name, const struct field_header *header, void *arg);
void field_each(const char *source, field_visit *visit, void *arg);

// Whether a directive includes a header that is neither ours, nor in the folder (NULL: nothing is),
// nor the system's: what of it the kernels need, the compiler is to say.
bool field_is_absent(const struct host_token *directive, const char *folder);
#define FIELD_ABSENT "not beside the file that includes it, and left out"

// Appends an #include for what the source uses without one of its own.
void field_bring(const char *source, struct buf *out);

// Whether all that the source takes from namespaces of those headers is in them. Else a GPU needs
// NVIDIA's own.
bool field_suffices(const char *source);

uint64_t field_hash(void); // of all texts
