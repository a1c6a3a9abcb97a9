#pragma once

// Words of a text, which are not terminated; and what comes from outside and may end up in a
// message, which is UTF-8 without control characters. Pure.

#include <stdbool.h>
#include <stddef.h>

bool text_is(const char *s, size_t n, const char *word); // the n bytes are that word
bool text_is_word_char(char c);                          // of a name in C
bool text_is_plain(const char *s, size_t n);             // UTF-8, and no control character but tabs
// The number of a file's first line: 1, but where that is `#line 12`, which the next one has; -1
// where that is a number that no line has, which is from 1 to 99999999.
int text_first_line(const char *s, size_t n);
// For each line of a text in which includes are in place (kernels/source.h), from its first, the
// line of the file itself: of what is included, the line that includes it. The caller frees it.
int *text_own_lines(const char *file, const char *whole, size_t size, int *out_n);
void text_clean(char *s); // a '?' for every byte that is not so
