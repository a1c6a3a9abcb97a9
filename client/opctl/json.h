#pragma once

// A decoded MessagePack object as JSON, on one line.
//
// Integers are written in full, whatever their size; floating-point numbers in as many digits as
// read back as the same number, and null where they are not finite. Bytes that are not UTF-8
// become U+FFFD. Binary and extension data are base64 strings. A map's key that is no string is
// written as the string of its JSON.

#include <stdio.h>

#include <msgpack.h>

void json_write(FILE *out, const msgpack_object *object);
