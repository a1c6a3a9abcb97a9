#pragma once

// The name among `count` that a mistyped word was probably meant to be, or NULL.
const char *suggest(const char *word, const char *const *names, int count);
