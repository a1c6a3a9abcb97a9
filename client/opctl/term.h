#pragma once

// What standard output is: how wide, and whether it takes colours. Nothing of it where that is no
// terminal.

#include <stdbool.h>
#include <stdio.h>

enum style { STYLE_PLAIN, STYLE_HEAD, STYLE_GOOD, STYLE_WARN, STYLE_BAD, STYLE_DIM };

// Once, before all else. wide: lines may be as long as they are.
void term_init(bool wide);

int term_columns(void); // to which lines are cut, as they are now; 0: they are not
int term_rows(void);
bool term_draws(void); // a frame can be drawn over the one before

// Begins a style; STYLE_PLAIN ends it. Nothing where there are no colours.
void term_style(FILE *out, enum style style);
// Of words that say how something is, "failed": STYLE_PLAIN where it is none.
enum style term_style_of(const char *word);
// The same on standard error, for "opctl: ".
void term_style_error(enum style style);

extern const char *term_cut; // stands for what was cut off; one column
