#pragma once

#include <stddef.h>
#include <stdint.h>

// Decodes the first character of `size` > 0 bytes. Returns its length, or 0 if they do not begin
// with a well-formed one (too long a form, a surrogate and what lies past U+10FFFF are not).
size_t utf8_decode(const char *bytes, size_t size, uint32_t *c);
