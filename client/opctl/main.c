// opctl: asks a running daemon, from the command line.

#include <errno.h>
#include <getopt.h>
#include <string.h>

#include "command.h"
#include "suggest.h"
#include "version.h"

static const struct command {
    const char *name;
    const char *args; // as the help shows them
    int most_args;
    int (*run)(struct session *session, char **args);
    const char *summary;
} commands[] = {
    { "status", "", 0, cmd_status, "versions, devices, memory, requests served" },
    { "ops", "[NAME]", 1, cmd_ops, "every operator, or one in full" },
    { "tensors", "", 0, cmd_tensors, "the named tensors that the daemon holds" },
    { "stop", "", 0, cmd_stop, "ends the daemon after the requests in flight" },
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_help(FILE *out)
{
    fputs("Usage: opctl [--socket PATH] [--json] COMMAND\n\nCommands:\n", out);
    for (int i = 0; i < COMMANDS; i++) {
        int used = fprintf(out, "  %s %s", commands[i].name, commands[i].args);
        fprintf(out, "%*s%s\n", 18 - used, "", commands[i].summary);
    }
    fputs("\nOptions:\n"
          "  --socket PATH   the daemon's socket; default: $OPD_SOCKET, else\n"
          "                  $XDG_RUNTIME_DIR/opd/opd.sock, else /tmp/opd-UID/opd.sock\n"
          "  --json          print the daemon's reply as JSON, on one line\n"
          "  --help          print this\n"
          "  --version       print the version\n"
          "\nExit status: 0 good, 1 the daemon answered an error, 2 wrong usage, 3 no daemon.\n",
          out);
}

static int complain(const char *what, const char *word, const char *meant)
{
    fprintf(stderr, "opctl: %s '%s'", what, word);
    if (meant)
        fprintf(stderr, ": did you mean '%s'?", meant);
    fputs("\nopctl --help lists the commands.\n", stderr);
    return EXIT_USAGE;
}

static const struct command *find_command(const char *name)
{
    const char *names[COMMANDS];
    for (int i = 0; i < COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strcmp(name, names[i]) == 0)
            return &commands[i];
    }
    complain("unknown command", name, suggest(name, names, COMMANDS));
    return NULL;
}

static int run(const struct command *command, const char *socket, bool json, char **args)
{
    struct opd_error err = { 0 };
    struct session session = { .client = opd_connect(socket, &err), .json = json };
    if (!session.client)
        return session_fail(&err);
    int code = command->run(&session, args);
    opd_close(session.client);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == EXIT_GOOD) {
        fprintf(stderr, "opctl: the output could not be written: %s\n", strerror(errno));
        return EXIT_ANSWERED;
    }
    return code;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        { "socket", required_argument, NULL, 's' },
        { "json", no_argument, NULL, 'j' },
        { "help", no_argument, NULL, 'h' },
        { "version", no_argument, NULL, 'v' },
        { 0 },
    };
    const char *socket = NULL;
    bool json = false;
    for (int option; (option = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        if (option == 's') {
            socket = optarg;
        } else if (option == 'j') {
            json = true;
        } else if (option == 'h') {
            print_help(stdout);
            return EXIT_GOOD;
        } else if (option == 'v') {
            puts("opctl " OPD_VERSION);
            return EXIT_GOOD;
        } else {
            return EXIT_USAGE;
        }
    }
    if (optind == argc) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    const struct command *command = find_command(argv[optind]);
    if (!command)
        return EXIT_USAGE;
    if (argc - optind - 1 > command->most_args)
        return complain("a word too many:", argv[optind + 1 + command->most_args], NULL);
    return run(command, socket, json, argv + optind + 1);
}
