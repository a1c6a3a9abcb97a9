#include "opctl/args.h"

#include <stdio.h>
#include <string.h>

#include "base/suggest.h"

const struct option_row args_options[OPTIONS] = {
    [OPTION_SOCKET] = { "--socket", "PATH",
                        "the daemon's socket; default: $OPD_SOCKET, else\n"
                        "$XDG_RUNTIME_DIR/opd/opd.sock, else /tmp/opd-UID/opd.sock" },
    [OPTION_JSON] = { "--json", NULL, "print the daemon's reply as JSON, on one line" },
    [OPTION_HELP] = { "--help", NULL, "print this; after a command, what it does" },
    [OPTION_VERSION] = { "--version", NULL, "print the version" },
    [OPTION_TARGET] = { "--target", "LIST", "sm_90, cpu; check takes several, with commas" },
    [OPTION_DTYPE] = { "--dtype", "LIST", "dtype: float32; check takes several, with commas" },
    [OPTION_FOLLOW] = { "--follow", NULL, "wait for what comes (the default)" },
    [OPTION_NO_FOLLOW] = { "--no-follow", NULL, "end after the last ones" },
    [OPTION_PTX] = { "--ptx", NULL, "print what its kernels compile to, as PTX" },
    [OPTION_SASS] = { "--sass", NULL, "the same, in the machine's own instructions" },
    [OPTION_RUN] = { "--run", NULL, "run the examples too; needs no daemon" },
    [OPTION_GRAD] = { "--grad", NULL, "prove the gradients of the examples; needs no daemon" },
    [OPTION_SEED] = { "--seed", "N", "with --run, --grad, replay: of the random tensors" },
    [OPTION_DEADLINE] = { "--deadline", "SEC",
                          "with --run, replay: for each stage, on a GPU each case, default 10;\n"
                          "with --grad: default 60" },
    [OPTION_DEVICE] = { "--device", "NAME",
                        "with --run, replay: cpu, or cuda:0; default: the CPU and, where there\n"
                        "is one, a GPU" },
    [OPTION_COUNT] = { "--count", "N", "end after so many" },
    [OPTION_SECONDS] = { "--seconds", "N", "end after that time" },
    [OPTION_PERFETTO] = { "--perfetto", "FILE", "write a timeline, for https://ui.perfetto.dev" },
    [OPTION_LISTEN] = { "--listen", "ADDR:PORT",
                        "answer HTTP there, GET /metrics; without ADDR: on 127.0.0.1" },
    [OPTION_WIDE] = { "--wide", NULL, "whole lines, wider than the terminal" },
};

static bool complain(char *why, size_t size, const char *what, const char *word, const char *meant)
{
    if (meant)
        snprintf(why, size, "%s '%s': did you mean '%s'?", what, word, meant);
    else
        snprintf(why, size, "%s '%s'", what, word);
    return false;
}

// The options themselves, "-h", and what 0.1.0 called --target. OPTIONS: none of that name.
static int find_option(const char *word, size_t length)
{
    if (length == 2 && memcmp(word, "-h", 2) == 0)
        return OPTION_HELP;
    if (length == 6 && memcmp(word, "--arch", 6) == 0)
        return OPTION_TARGET;
    for (int i = 0; i < OPTIONS; i++) {
        const char *name = args_options[i].name;
        if (strlen(name) == length && memcmp(name, word, length) == 0)
            return i;
    }
    return OPTIONS;
}

static bool refuse_option(const char *word, size_t length, char *why, size_t size)
{
    char name[64];
    const char *names[OPTIONS];
    snprintf(name, sizeof name, "%.*s", (int)length, word);
    for (int i = 0; i < OPTIONS; i++)
        names[i] = args_options[i].name;
    return complain(why, size, "unknown option", name, suggest_among(name, names, OPTIONS));
}

// Reads the option at *at, and its value; *at is left on the last word that was used.
static bool parse_option(int argc, char **argv, int *at, struct args *args, char *why, size_t size)
{
    const char *word = argv[*at], *value = strchr(word, '=');
    size_t length = value ? (size_t)(value - word) : strlen(word);
    int option = find_option(word, length);
    if (option == OPTIONS)
        return refuse_option(word, length, why, size);
    const struct option_row *row = &args_options[option];
    if (!row->value && value)
        return complain(why, size, "a value for an option that takes none:", word, NULL);
    if (row->value && !value && *at + 1 == argc) {
        snprintf(why, size, "%s wants a %s after it", row->name, row->value);
        return false;
    }
    if (!row->value)
        args->options[option] = "";
    else
        args->options[option] = value ? value + 1 : argv[++*at];
    return true;
}

bool args_parse(int argc, char **argv, struct args *args, char *why, size_t size)
{
    bool options = true;
    int words = 0;
    *args = (struct args){ 0 };
    for (int i = 0; i < argc; i++) {
        if (options && strcmp(argv[i], "--") == 0) {
            options = false;
        } else if (options && argv[i][0] == '-' && argv[i][1]) {
            if (!parse_option(argc, argv, &i, args, why, size))
                return false;
        } else if (words == ARGS_MOST_WORDS) {
            return complain(why, size, "a word too many:", argv[i], NULL);
        } else {
            args->words[words++] = argv[i];
        }
    }
    return true;
}
