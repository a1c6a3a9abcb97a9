#pragma once

// "did you mean": the candidate that is nearest to a misspelt word.

#include <stddef.h>

struct suggest {
    const char *word;
    size_t size;
    const char *best; // NULL: nothing is near
    int distance;
};

void suggest_init(struct suggest *s, const char *word, size_t size);
void suggest_add(struct suggest *s, const char *candidate); // borrowed until the text is made

// "; did you mean 'x'?", or "" if nothing is near. Returns out.
const char *suggest_text(const struct suggest *s, char *out, size_t size);
