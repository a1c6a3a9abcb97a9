#pragma once

// The operators that are served, read from the kernel folders: the shipped one first, later ones win where names clash.

#include <stdbool.h>
#include <stdint.h>

#include "map.h"
#include "op.h"
#include "plan.h"

struct broker;
struct device;
struct program;

// One version of an operator. Counted: requests and programs hold on to what they started with.
struct entry {
    int refs;
    struct op *op;
    int version;
    char *path;   // of the file
    char *folder; // of its #include "..."
    struct map plans; // struct bound_plan by hash of signature and device
    int n_plans;
    struct entry *next; // in the registry, by name
};

// A plan with the programs that it launches, on one device. Kept by the entry.
struct bound_plan {
    struct bound_plan *next; // of the same hash
    struct device *device;
    uint8_t *signature;
    size_t signature_size;
    struct plan *plan;
    struct program **programs; // plan->n_kernels
};

struct registry {
    struct entry *entries; // sorted by name
    int count;
    uint64_t generation;
    char *common; // the text of opd.cuh
};

// Reads opd.cuh and every .cu of the folders. A file that does not parse is logged and left out.
// Errors: invalid_argument where the common header or a folder cannot be read.
bool registry_load(struct registry *r, char *const *folders, int n_folders, struct opd_err *err);
void registry_finish(struct registry *r);

struct entry *registry_find(const struct registry *r, const char *name);          // NULL: none
// "; did you mean 'gelu'?", or "" where no name is near. Returns out.
const char *registry_suggest(const struct registry *r, const char *name, char *out, size_t size);
struct entry *entry_ref(struct entry *e);
void entry_unref(struct entry *e); // NULL is fine

// The plan for a request on a device: from the entry's cache, or built. NULL with an error. Valid until the next call for
// the same entry: the cache may be emptied when it is full.
struct bound_plan *entry_plan(struct entry *e, struct device *d, const struct plan_request *request, struct opd_err *err);
void entry_drop_plans(struct entry *e);
