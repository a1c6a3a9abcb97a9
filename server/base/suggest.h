#pragma once

// "did you mean": of some names, the one that is nearest to a misspelt word, by the letters that
// were left out, put in, changed or swapped, whatever their case; a word of two letters or more
// also stands for the names that it begins. Pure; the daemon and opctl share it.

#include <stddef.h>

enum { SUGGEST_MAX = 64 }; // longer names and words are near to nothing

struct suggest {
    const char *word;
    size_t size;
    const char *best; // NULL: nothing is near
    int distance;
    char text[SUGGEST_MAX + 24];
};

void suggest_init(struct suggest *s, const char *word, size_t size); // borrowed
void suggest_add(struct suggest *s, const char *name);               // borrowed
const char *suggest_text(struct suggest *s); // "; did you mean 'x'?" or ""; lives in s

// All at once: the nearest name, or NULL.
const char *suggest_among(const char *word, const char *const *names, int n);
