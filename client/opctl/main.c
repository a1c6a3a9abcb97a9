// opctl: asks a running daemon, from the command line.

#include <errno.h>
#include <string.h>

#include "opctl/alone.h"
#include "opctl/command.h"
#include "opctl/term.h"
#include "base/suggest.h"
#include "base/version.h"

#define WITH(option) (1u << (option))

static const struct command {
    const char *name;
    const char *args; // as the help shows them
    int least, most;  // how many words
    unsigned options; // besides --socket, --json, --help
    int (*run)(struct session *session, const struct args *args); // NULL: needs no daemon
    const char *summary;
    const char *more; // what its own help adds; NULL: nothing
} commands[] = {
    { "status", "", 0, 0, 0, cmd_status, "versions, devices, memory, requests served", NULL },
    { "ops", "[NAME]", 0, 1,
      WITH(OPTION_PTX) | WITH(OPTION_SASS) | WITH(OPTION_DTYPE) | WITH(OPTION_TARGET), cmd_ops,
      "every operator, or one in full",
      "Below them who has loaded which from a text of their own. With a NAME: its schema, inputs,\n"
      "attributes, outputs and versions. With --ptx or --sass: the code of its kernels, for one\n"
      "dtype and one target (default: the first of each)." },
    { "tensors", "", 0, 0, 0, cmd_tensors, "the named tensors that the daemon holds", NULL },
    { "reload", "", 0, 0, 0, cmd_reload, "takes up edited kernels now, and tells what came of it",
      "The daemon watches its folders by itself; this waits until it is through with them. Exits "
      "1\n"
      "if a file failed: what was served before still is." },
    { "kernels", "add DIR", 2, 2, 0, cmd_kernels, "serves the operators of another folder, too",
      "From now on, as if the daemon had been started with --kernels DIR. Tells what came of it, "
      "and\n"
      "exits, as 'reload' does." },
    { "check", "FILE.cu", 1, 1,
      WITH(OPTION_TARGET) | WITH(OPTION_DTYPE) | WITH(OPTION_RUN) | WITH(OPTION_GRAD) |
          WITH(OPTION_SEED) | WITH(OPTION_DEADLINE) | WITH(OPTION_DEVICE),
      cmd_check, "compiles a file without serving it, runs it, proves its gradients",
      "Prints the errors as compilers do, then what each kernel takes for each dtype and target:\n"
      "registers, bytes spilled, shared memory, stack. Exits 1 if it does not compile. Where no "
      "daemon\n"
      "runs it has one to itself.\n"
      "With --run its examples run on the CPU, forward and backward, on random tensors: plainly,\n"
      "then under the address sanitizer (with that for undefined behaviour), then under the "
      "thread\n"
      "sanitizer, to which each CUDA thread is a thread; and where there is a GPU on that, in "
      "builds\n"
      "that hold each access against its tensor. Exits 1 if something was found.\n"
      "With --grad its gradients are held against central differences on the CPU, in float64 "
      "where\n"
      "the file has it; each subset of them against all; two runs in different orders for the "
      "same\n"
      "bits; and what it says is linear. Exits 1 if something is wrong." },
    { "new", "FILE.cu [KERNELS]", 1, 2, 0, NULL, "prints a file of kernels with a header before it",
      "From their parameters, names and launches; what these do not tell is guessed and asked in\n"
      "comments, '// ?'. KERNELS: names with commas between; else the first, and its backward.\n"
      "Needs no daemon. Exits 1 if the result does not load, and says what is missing." },
    { "faults", "", 0, 0, 0, cmd_faults, "the last faults, kept to be run again",
      "Runs that faulted or missed their deadline, of any daemon with this cache." },
    { "replay", "N", 1, 1, WITH(OPTION_SEED) | WITH(OPTION_DEADLINE) | WITH(OPTION_DEVICE),
      cmd_faults,
      "runs a fault again under the sanitizers",
      "As 'check --run' runs examples, on the CPU and, where it was a GPU's, on that: the same "
      "source,\n"
      "shapes and attributes, and the inputs where they were kept, else random ones. Exits 1 if\n"
      "something was found." },
    { "events", "", 0, 0, WITH(OPTION_FOLLOW) | WITH(OPTION_NO_FOLLOW), cmd_events,
      "reloads, failures, restarts, as they come",
      "Prints the last ones, then waits for more until it is interrupted. With --json: one object\n"
      "on each line." },
    { "top", "", 0, 0, WITH(OPTION_FOLLOW) | WITH(OPTION_NO_FOLLOW), cmd_top,
      "what devices and operators do, each second",
      "Per device: how busy, what waits, how much memory, how fast it copies. Per operator: "
      "calls,\n"
      "their mean time on the device and its 99th percentile, the bytes of its tensors in a "
      "second\n"
      "beside what the device would copy, kernels compiled. Then who holds memory.\n"
      "On a terminal it is drawn in place: letters, shown below, sort; r turns that round; up and\n"
      "down scroll; q ends it. Else, and with --json: a block for each second. With --no-follow: "
      "one." },
    { "trace", "", 0, 0, WITH(OPTION_COUNT) | WITH(OPTION_SECONDS) | WITH(OPTION_PERFETTO),
      cmd_trace, "runs of operators, and how long each took on the device",
      "A line for each run as it ends, of whichever client: kernels launched, microseconds that "
      "it\n"
      "waited, microseconds on the device. Until it is interrupted. With --json: one object on "
      "each\n"
      "line. With --perfetto: into a file, until then in memory; requests by client, device time,\n"
      "compiles and edits are on tracks of their own." },
    { "metrics", "", 0, 0, WITH(OPTION_LISTEN), cmd_metrics,
      "counters, in the format that Prometheus reads",
      "Once; with --listen to all who ask by HTTP, one after the other, until it is interrupted. "
      "It\n"
      "has neither a password nor encryption. Port 0: one that is free. The first line says "
      "which." },
    { "rollback", "OP", 1, 1, 0, cmd_rollback, "serves the version before, until the next edit",
      NULL },
    { "pin", "OP VERSION|latest", 2, 2, 0, cmd_pin, "serves one version, whatever is edited",
      "The versions are those that 'opctl ops OP' lists; latest: the newest again, and every "
      "edit." },
    { "restart", "DEVICE", 1, 1, 0, cmd_restart, "ends a device's process and starts another",
      "Tensors stay. Requests that were sent to it end first, or miss their deadline." },
    { "upgrade", "[PROGRAM]", 0, 1, 0, cmd_upgrade,
      "replaces the running daemon's program, and loses nothing",
      "The PROGRAM takes over socket, connections, tensors and versions; requests that come\n"
      "meanwhile are answered late. Default: the path that the daemon was started from, where a\n"
      "new one may lie. One that cannot read the daemon's state is refused, and the daemon goes\n"
      "on." },
    { "stop", "", 0, 0, 0, cmd_stop, "ends the daemon after the requests in flight", NULL },
};

enum {
    COMMANDS = sizeof commands / sizeof *commands,
    COMMON = WITH(OPTION_SOCKET) | WITH(OPTION_JSON) | WITH(OPTION_WIDE) | WITH(OPTION_HELP),
};

enum { OPTION_HELP_AT = 22 }; // column

static void print_options(FILE *out, unsigned wanted)
{
    fputs("\nOptions:\n", out);
    for (int i = 0; i < OPTIONS; i++) {
        const struct option_row *row = &args_options[i];
        if (!(wanted & WITH(i)))
            continue;
        int used = fprintf(out, "  %s%s%s", row->name, row->value ? " " : "",
                           row->value ? row->value : "");
        fprintf(out, "%*s", OPTION_HELP_AT - used, "");
        for (const char *c = row->help; *c; c++) {
            putc(*c, out);
            if (*c == '\n')
                fprintf(out, "%*s", OPTION_HELP_AT, "");
        }
        putc('\n', out);
    }
}

static void print_help(FILE *out)
{
    fputs("Usage: opctl [--socket PATH] [--json] COMMAND\n\nCommands:\n", out);
    for (int i = 0; i < COMMANDS; i++) {
        int used = fprintf(out, "  %s %s", commands[i].name, commands[i].args);
        fprintf(out, "%*s%s\n", 26 - used, "", commands[i].summary);
    }
    print_options(out, COMMON | WITH(OPTION_VERSION));
    fputs("\nExit status: 0 good, 1 the daemon answered an error or a kernel did not compile,\n"
          "2 wrong usage, 3 no daemon.\n",
          out);
}

static void print_usage(FILE *out, const struct command *command)
{
    fprintf(out, "Usage: opctl %s%s%s%s\n\n%s: %s.\n", command->name, *command->args ? " " : "",
            command->args, command->options ? " [OPTIONS]" : "", command->name, command->summary);
    if (command->more)
        fprintf(out, "%s\n", command->more);
    print_options(out, command->options | COMMON);
}

static const struct command *find_command(const char *name)
{
    const char *names[COMMANDS], *meant;
    for (int i = 0; i < COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(name, names[i]) == 0)
            return &commands[i];
    }
    if ((meant = suggest_among(name, names, COMMANDS)))
        session_refuse("unknown command '%s': did you mean '%s'?", name, meant);
    else
        session_refuse("unknown command '%s'", name);
    fputs("opctl --help lists the commands.\n", stderr);
    return NULL;
}

// Are these words and options those that the command takes?
static bool check_args(const struct command *command, const struct args *args)
{
    int count = 0;
    while (args->words[count + 1])
        count++;
    const char *wrong = NULL;
    bool runs = args->options[OPTION_RUN] || args->options[OPTION_GRAD];
    for (int i = 0; i < OPTIONS && !wrong; i++)
        if (args->options[i] && !((command->options | COMMON) & WITH(i)))
            wrong = args_options[i].name;
    if (wrong)
        session_refuse("%s takes no %s", command->name, wrong);
    else if (count < command->least)
        session_refuse("%s wants %s", command->name, command->args);
    else if (count > command->most)
        session_refuse("a word too many: '%s'", args->words[1 + command->most]);
    else if (args->options[OPTION_RUN] && args->options[OPTION_GRAD])
        session_refuse("check takes --run or --grad, one after the other");
    else if (runs && args->options[OPTION_TARGET])
        session_refuse("check --run and --grad take no --target: --device says where they run");
    else if ((args->options[OPTION_SEED] || args->options[OPTION_DEADLINE]) && !runs &&
             command->run == cmd_check)
        session_refuse("--seed and --deadline belong to check --run and --grad");
    else if (args->options[OPTION_DEVICE] && !args->options[OPTION_RUN] &&
             command->run == cmd_check)
        session_refuse("--device belongs to check --run");
    else
        return true;
    fprintf(stderr, "opctl %s --help tells more.\n", command->name);
    return false;
}

static int run(const struct command *command, const struct args *args)
{
    struct opd_error err = { 0 };
    if (args->options[OPTION_RUN] || args->options[OPTION_GRAD])
        return alone_check(args);
    if (!command->run)
        return alone_new(args);
    struct session session = { .client = opd_connect(args->options[OPTION_SOCKET], &err),
                               .json = args->options[OPTION_JSON] != NULL };
    if (!session.client && command->run == cmd_check && err.code != OPD_INVALID_ARGUMENT) {
        opd_error_clear(&err);
        const char *socket = alone_start();
        if (!socket)
            return EXIT_ABSENT;
        session.client = opd_connect(socket, &err);
    }
    if (!session.client && command->run == cmd_stop &&
        stop_keeper(args->options[OPTION_SOCKET])) {
        opd_error_clear(&err);
        return EXIT_GOOD;
    }
    if (!session.client && command->run == cmd_faults) // it needs no daemon
        opd_error_clear(&err);
    int code = session.client || command->run == cmd_faults ? command->run(&session, args)
                                                            : session_fail(&err);
    opd_close(session.client);
    alone_stop();
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == EXIT_GOOD) {
        fprintf(stderr, "opctl: the output could not be written: %s\n", strerror(errno));
        return EXIT_ANSWERED;
    }
    return code;
}

int main(int argc, char **argv)
{
    struct args args;
    char why[256];
    const struct command *command = NULL;
    term_init(false);
    if (!args_parse(argc - 1, argv + 1, &args, why, sizeof why)) {
        session_refuse("%s", why);
        fputs("opctl --help lists the commands and options.\n", stderr);
        return EXIT_USAGE;
    }
    if (args.options[OPTION_VERSION] && !args.words[0]) {
        puts("opctl " OPD_VERSION);
        return EXIT_GOOD;
    }
    if (args.words[0] && !(command = find_command(args.words[0])))
        return EXIT_USAGE;
    bool help = args.options[OPTION_HELP];
    term_init(args.options[OPTION_WIDE]);
    if (!command) {
        print_help(help ? stdout : stderr);
        return help ? EXIT_GOOD : EXIT_USAGE;
    }
    if (help) {
        print_usage(stdout, command);
        return EXIT_GOOD;
    }
    return check_args(command, &args) ? run(command, &args) : EXIT_USAGE;
}
