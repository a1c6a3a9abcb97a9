#pragma once

// The words after `opctl`, taken apart: a pure function of them.

#include <stdbool.h>
#include <stddef.h>

enum option {
    OPTION_SOCKET,
    OPTION_JSON,
    OPTION_HELP,
    OPTION_VERSION,
    OPTION_TARGET,
    OPTION_DTYPE,
    OPTION_FOLLOW,
    OPTION_NO_FOLLOW,
    OPTION_PTX,
    OPTION_SASS,
    OPTION_RUN,
    OPTION_GRAD,
    OPTION_SEED,
    OPTION_DEADLINE,
    OPTION_DEVICE,
    OPTION_COUNT,
    OPTION_SECONDS,
    OPTION_WIDE,
    OPTION_PERFETTO,
    OPTION_LISTEN,
    OPTIONS,
};

enum { ARGS_MOST_WORDS = 3 };

struct args {
    const char *words[ARGS_MOST_WORDS + 1]; // the command and its words, then NULLs
    const char *options[OPTIONS];           // the value, "" for one that has none; NULL: not given
};

struct option_row {
    const char *name;  // "--arch"
    const char *value; // what the help calls it; NULL: it takes none
    const char *help;  // lines after the first are indented by the printer
};

extern const struct option_row args_options[OPTIONS];

// Options may stand anywhere, as `--arch cpu` or `--arch=cpu`; what follows `--` is no option.
// False: `why` says on one line what is wrong, and what was probably meant.
bool args_parse(int argc, char **argv, struct args *args, char *why, size_t size);
