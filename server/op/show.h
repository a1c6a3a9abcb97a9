#pragma once

// Shows a mistake in an operator's file: the line on which it stands, and a caret below it. From
// the message alone, and what the lexer knew of the place: a message that names no place is no
// error here.

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

// What is known of the place besides the message's "file:line: ".
struct show_hint {
    const char *at;   // in the text, at the mistake or behind it; NULL: only the line is known
    bool exact;       // the mistake begins at `at`
    bool column;      // the message names the column too
    const char *word; // it is at this word; NULL: at the first one that the message quotes
};

// Puts both lines into err->log, which is empty. Where the mistake turns out to stand on a later
// line of a continued directive, the message names that. An error that names no line of the file is
// left as it is.
void show_mistake(struct opd_err *err, const char *file, const char *text, size_t size,
                  const struct show_hint *hint);
