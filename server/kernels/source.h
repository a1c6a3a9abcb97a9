#pragma once

// One .cu file as it was last read: its text with what it includes by quotes put in place, and what
// tells that it, or one of those headers, has changed since. So a version is one text and one hash,
// however many files it came from, and no edit that comes later can reach into it.

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/file.h"

enum { SOURCE_MAX_SIZE = 1 << 20, SOURCE_MAX_INCLUDES = 64 };

struct source_include {
    char *path;
    struct file_stamp stamp;
};

// Why the file is not served as it is now: it failed, or another file of its operator wins. It
// stands until a version of the file is served, or the file is gone.
struct source_failure {
    uint64_t seq;  // of the event that told of it; 0: it did not fail
    bool shadowed; // another file wins
    char op[64];   // "" if none is known
    int version;   // 0: it did not come to one
    double ms;
    struct opd_err err;
};

struct source {
    char *folder, *file, *path;
    int folder_index;        // later folders win
    struct file_stamp stamp; // when it was read
    struct file_stamp now;   // by the look under way
    struct source_include includes[SOURCE_MAX_INCLUDES];
    int n_includes;
    char *original; // the file's own text: its header is read from it
    size_t original_size;
    char *text;    // with the includes in place
    uint64_t hash; // of `text`
    char op[64];   // the operator that it last gave; "" if none
    struct source *next_of_op;
    bool linked;            // among those that give that operator, see sources.h
    bool seen;              // by the look under way
    bool away;              // its whole folder is not there
    bool watched;           // so are the folders of its includes, see watch.h
    uint64_t missing_since; // clock_ns(); 0: it is there
    uint64_t empty_since;   // the same; 0: it is not
    struct source_failure failure;
    struct version *first; // while the daemon starts
};

struct source *source_new(const char *folder, const char *file, int folder_index); // not read yet
void source_free(struct source *s);                                                // NULL is fine

void source_mend(struct source *s); // its failure stands no more; NULL is fine

// A file's text, terminated; the caller frees it. Errors: invalid_argument.
char *source_read_file(const char *path, size_t *out_size, struct opd_err *err);

// Is one stamp another `now`? *out_by_include: of a header, not of the file itself.
bool source_changed(const struct source *s, bool *out_by_include);

// Reads it anew. Errors: invalid_argument (it cannot be read, is too long, includes itself); `s`
// then keeps its old text under the new stamps, so that the failure is told once.
bool source_read(struct source *s, struct opd_err *err);

// The text that stands before every operator: opd.cuh of that folder, with its parts in place. NULL
// with an error; the caller frees it.
char *source_common(const char *folder, struct opd_err *err);

// A source that is no file: the text, and what it includes from the folder ("": nothing). NULL with
// an error.
struct source *source_of_text(const char *folder, const char *file, const char *text, size_t size,
                              struct opd_err *err);
