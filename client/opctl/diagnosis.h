#pragma once

// What a map has to say of a failure, as compilers print it: its "message" on a line, unless it is
// in the "log", which follows. Maps of any shape are fine.

#include <stdbool.h>
#include <stdio.h>

#include <msgpack.h>

void diagnosis_print(FILE *out, const msgpack_object *map);

// Those of an array of maps, each of them once.
void diagnosis_print_all(FILE *out, const msgpack_object *list);

// The parts: is there a message that the log does not hold; the log alone.
bool diagnosis_has_message(const msgpack_object *map);
void diagnosis_print_log(FILE *out, const msgpack_object *map);
