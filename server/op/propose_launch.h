#pragma once

// How the host's code of a pasted file launches a kernel. Of propose.h alone.

#include "op/propose_guess.h"

struct guessed_launch {
    const char *text;                 // "f<<<blocks,256>>>", without spaces; NULL: there is none
    const char *grid, *block, *shared; // as a header says them; NULL: they are not all known
};

// Once sizes and attributes are known. False: the file launches it nowhere.
bool guess_launch(struct proposal *p, const struct signature *k, struct guessed_launch *out);
