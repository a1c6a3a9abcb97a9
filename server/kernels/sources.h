#pragma once

// The .cu files of all kernel folders, in the order in which they win: a later folder's over an
// earlier one's, and in a folder by name. To find one, by its path or by the operator that it
// gives, costs the same however many there are.

#include <stdbool.h>
#include <stddef.h>

#include "kernels/source.h"
#include "wire/map.h"

struct sources {
    char *const *folders; // the caller's
    int n_folders;
    struct source **at;
    size_t n;
    struct map by_op; // first of those that give an operator, by hash of its name
    bool unsorted;    // sources_add() since the last sources_list()
    bool folder_missing;
};

// Takes it over. It is found after the next sources_list().
void sources_add(struct sources *ss, struct source *s);

// Reads the folders: which files are there, with what stat() says of them (`now`), which are not
// any more (missing_since), and which cannot be judged while their whole folder is not there
// (`away`).
void sources_list(struct sources *ss);

struct source *sources_find(const struct sources *ss, const char *path); // NULL: there is none
// The file that gives an operator its name: the last that does and is there. NULL: none.
struct source *sources_winner(const struct sources *ss, const char *op);
void sources_rename(struct sources *ss, struct source *s, const char *op); // what it gives from now
void sources_remove(struct sources *ss, size_t i);
void sources_finish(struct sources *ss);
