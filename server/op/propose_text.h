#pragma once

// A header's lines, from what is guessed; and the questions. Of propose.h alone.

#include "op/propose_guess.h"

void propose_write_schema(struct proposal *p);
void propose_write_types(struct proposal *p);
void propose_write_shapes(struct proposal *p);
void propose_write_example(struct proposal *p);
void propose_write_section(struct proposal *p, bool backward);
