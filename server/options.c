#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/mpscan.h"
#include "base/suggest.h"
#include "base/version.h"
#include "option_types.h"

static const struct option_row *find_row(const char *name);
static bool refuse_name(const char *name, struct opd_err *err);

// --- values of no type

static bool set_device(const struct option_row *row, void *options, const char *text,
                       struct opd_err *err)
{
    (void)row;
    return options_set_devices(options, text, err);
}

bool options_add_kernels(struct options *o, const char *folder, struct opd_err *err)
{
    char path[PATH_MAX];
    struct stat st;
    if (!realpath(folder, path) || stat(path, &st) < 0)
        return opd_err_errno(err, OPD_E_invalid_argument, "%s", folder);
    if (!S_ISDIR(st.st_mode))
        return opd_err_set(err, OPD_E_invalid_argument, "%s is no folder", folder);
    for (int i = 0; i < o->n_kernels; i++)
        if (strcmp(o->kernels[i], path) == 0)
            return true;
    if (o->n_kernels == OPTIONS_MAX_FOLDERS)
        return opd_err_set(err, OPD_E_invalid_argument, "more than %d folders",
                           OPTIONS_MAX_FOLDERS);
    o->kernels[o->n_kernels++] = mem_strdup(path);
    return true;
}

static bool set_kernels(const struct option_row *row, void *options, const char *text,
                        struct opd_err *err)
{
    return options_add_kernels(options, text, err) || opd_err_prefix(err, "--%s", row->name);
}

// --- a configuration file: "name = value", a line each

// `text`: NULL for an option without a value.
static bool set_option(struct options *o, const struct option_row *row, const char *text,
                       struct opd_err *err)
{
    return row->set(row, (char *)o + row->offset, text, err);
}

static char *trim(char *s)
{
    while (isspace((unsigned char)*s))
        s++;
    size_t n = strlen(s);
    while (n > 0 && isspace((unsigned char)s[n - 1]))
        s[--n] = '\0';
    return s;
}

static bool read_config_line(struct options *o, char *line, struct opd_err *err)
{
    char *text = trim(line);
    if (!text[0] || text[0] == '#')
        return true;
    char *equals = strchr(text, '=');
    if (!equals)
        return opd_err_set(err, OPD_E_invalid_argument, "'%s', expected \"name = value\"", text);
    *equals = '\0';
    const struct option_row *row = find_row(trim(text));
    if (!row || strcmp(row->name, "config") == 0)
        return refuse_name(trim(text), err);
    return set_option(o, row, trim(equals + 1), err);
}

static bool read_config(struct options *o, FILE *f, const char *path, struct opd_err *err)
{
    char *line = NULL;
    size_t capacity = 0;
    bool ok = true;
    for (int number = 1; ok && getline(&line, &capacity, f) >= 0; number++)
        if (!(ok = read_config_line(o, line, err)))
            opd_err_prefix(err, "%s:%d", path, number);
    free(line);
    fclose(f);
    return ok;
}

static bool set_config(const struct option_row *row, void *options, const char *text,
                       struct opd_err *err)
{
    struct options *o = options;
    o->has_config = true;
    FILE *f = fopen(text, "re");
    return f ? read_config(o, f, text, err)
             : opd_err_errno(err, OPD_E_invalid_argument, "--%s: %s", row->name, text);
}

// --- the options

#define AT(set, field) set, offsetof(struct options, field)
#define TEXT(field, least) AT(option_set_text, field), least, INT_MAX
#define COUNT(field, most) AT(option_set_count, field), 1, most
#define SIZE(field, least, most) AT(option_set_size, field), least, most
#define SECONDS(field) AT(option_set_seconds, field), 0, 1000000000
#define SECONDS_OR_NONE(field) AT(option_set_seconds, field), -1, 1000000000
#define SWITCH(field) AT(option_set_switch, field), 0, 0
#define OWN(set) set, 0, 0, 0

// Every option, in the order of --help.
static const struct option_row rows[] = {
    { "socket", "PATH", "the Unix socket to serve on", NULL, TEXT(socket, 1) },
    { "group", "NAME", "let the members of a group connect too (default: nobody but you)", NULL,
      TEXT(group, 0) },
    { "device", "LIST", "auto (every GPU, and the CPU), or a list of cpu, cuda, cuda:N", "auto",
      OWN(set_device) },
    { "kernels", "DIR", "add a folder of operators; may be repeated, later ones win", NULL,
      OWN(set_kernels) },
    { "cache", "DIR", "where compiled kernels are kept; \"\" keeps none", NULL, TEXT(cache, 0) },
    { "cache-size", "SIZE", "bytes that the cache may take: 512M, 4G", "1G",
      SIZE(cache_limit, 1, OPTION_MAX_SIZE) },
    { "config", "FILE", "read options from a file: a line \"name = value\" for each", NULL,
      OWN(set_config) },
    { "log-level", "L", "debug, info, warn or error", "info",
      AT(option_set_log_level, log_level), 0, 0 },
    { "compilers", "N", "compiler processes (default: by the number of cores)", NULL,
      COUNT(compilers, OPTIONS_MAX_COMPILERS) },
    { "memory-limit", "SIZE", "device memory that opd may take on each device: 512M, 8G", NULL,
      SIZE(memory_limit, 1, OPTION_MAX_SIZE) },
    { "deadline", "SECONDS", "how long a request may run on a device", "10", SECONDS(deadline) },
    { "compile-deadline", "SECONDS", "how long one compile may take", "60",
      SECONDS(compile_deadline) },
    { "keep", "SECONDS", "how long named tensors outlive a daemon that is killed; 0: not at all",
      "600", SECONDS_OR_NONE(keep) },
    { "spare", "WHICH",
      "auto: a device's next process waits where that takes 1 % of its memory; off: it does not",
      "auto", AT(option_set_spare, spare), 0, 0 },
    { "first-run", "WHICH",
      "checked: on a GPU the first calls after an edit run in a checked build; or plain", "checked",
      AT(option_set_first_run, checks_first), 0, 0 },
    { "faults", "N", "how many faults are kept for opctl replay; 0: none", "16",
      AT(option_set_count, faults), 0, 1000 },
    { "fault-size", "SIZE", "bytes of its inputs that are kept of a fault", "1M",
      SIZE(fault_size, 1, 64 << 20) },
    { "max-connections", "N", "connections at one time", "256", COUNT(max_connections, 65536) },
    { "blas", "WHICH", "vendor: cuBLASLt or a CBLAS where there is one; own: never", "vendor",
      AT(option_set_blas, own_blas), 0, 0 },
    { "client-memory", "SIZE", "device memory that one client may hold on each (default: all)",
      NULL, SIZE(client_memory, 1, OPTION_MAX_SIZE) },
    { "client-requests", "N", "requests of one client on devices at a time", "256",
      COUNT(client_requests, 65536) },
    { "max-message", "SIZE", "bytes of a message, 64K to 64M", "64M",
      SIZE(max_message, 64 << 10, MPSCAN_DEFAULT_MESSAGE) },
    { "max-launches", "N", "kernel launches of one request", "8192", COUNT(max_launches, 1 << 20) },
    { "debug", NULL,
      "wait for each launch before the next, on a GPU in checked builds; as OPD_DEBUG=1", NULL,
      SWITCH(debug) },
    { "warm", NULL, "compile the examples of every operator at start", NULL, SWITCH(warm) },
    { "prove", NULL, "prove the gradients of each edit, as opctl check --grad does", NULL,
      SWITCH(prove) },
    { "spin", NULL, "spin before sleeping, where there are cores for it; clients in C too", NULL,
      SWITCH(spin) },
};

// What getopt returns is a letter, or a number from ROW on.
enum { N_ROWS = sizeof rows / sizeof rows[0], ROW = 1000, HELP = ROW + N_ROWS, VERSION };

static bool refuse_name(const char *name, struct opd_err *err)
{
    const char *word = name + strspn(name, "-");
    struct suggest near;
    suggest_init(&near, word, strcspn(word, "="));
    for (int i = 0; i < N_ROWS; i++)
        suggest_add(&near, rows[i].name);
    return opd_err_set(err, OPD_E_invalid_argument, "unknown option '%s'; see opd --help%s", name,
                       suggest_text(&near));
}

static const struct option_row *find_row(const char *name)
{
    for (int i = 0; i < N_ROWS; i++)
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    return NULL;
}

static void print_help(void)
{
    printf("usage: opd [OPTION]...\n\nServes operators to every process of this user, in the "
           "foreground.\n\n");
    for (int i = 0; i < N_ROWS; i++) {
        char left[64];
        snprintf(left, sizeof left, "--%s %s", rows[i].name,
                 rows[i].argument ? rows[i].argument : "");
        printf("  %-28s %s", left, rows[i].help);
        printf(rows[i].preset ? " (default: %s)\n" : "\n", rows[i].preset);
    }
    printf("  %-28s %s\n  %-28s %s\n\n", "--help", "this", "--version", "the version");
    printf(
        "The socket's default is $OPD_SOCKET, else $XDG_RUNTIME_DIR/opd/opd.sock, else\n"
        "/tmp/opd-UID/opd.sock. The cache's is $XDG_CACHE_HOME/opd, else ~/.cache/opd. Without\n"
        "--config, $XDG_CONFIG_HOME/opd/opd.conf, else ~/.config/opd/opd.conf, is read where it\n"
        "is there. Folders of $OPD_KERNELS, with colons between, are added before --kernels.\n");
}

// NULL: it is not set, or empty.
static const char *read_env(const char *name)
{
    const char *text = getenv(name);
    return text && text[0] ? text : NULL;
}

static char *default_socket(void)
{
    const char *socket = read_env("OPD_SOCKET"), *runtime = read_env("XDG_RUNTIME_DIR");
    return socket    ? mem_strdup(socket)
           : runtime ? mem_printf("%s/opd/opd.sock", runtime)
                     : mem_printf("/tmp/opd-%u/opd.sock", getuid());
}

static char *default_cache(void)
{
    const char *cache = read_env("XDG_CACHE_HOME"), *home = read_env("HOME");
    return cache  ? mem_printf("%s/opd", cache)
           : home ? mem_printf("%s/.cache/opd", home)
                  : mem_printf("/tmp/opd-%u/cache", getuid());
}

// The shipped operators: beside the build folder in a checkout, under share/ where installed.
static void default_kernels(struct options *o)
{
    static const char *const places[] = { "/../share/opd/kernels_src", "/../kernels_src",
                                          "/../../kernels_src" };
    char exe[PATH_MAX], path[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0)
        return;
    exe[n] = '\0';
    *strrchr(exe, '/') = '\0';
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        char *candidate = mem_printf("%s%s", exe, places[i]);
        bool found = realpath(candidate, path) != NULL;
        free(candidate);
        if (found) {
            o->kernels[o->n_kernels++] = mem_strdup(path);
            return;
        }
    }
}

static void set_defaults(struct options *o)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const char *debug = read_env("OPD_DEBUG");
    *o = (struct options){
        .socket = default_socket(),
        .group = mem_strdup(""),
        .cache = default_cache(),
        .compilers = cores < 2   ? 1
                     : cores > 8 ? 8
                                 : (int)cores,
        .debug = debug && strcmp(debug, "0") != 0,
    };
    default_kernels(o);
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].preset)
            set_option(o, &rows[i], rows[i].preset, NULL);
}

static bool take_option(struct options *o, int c, char **argv, bool config, struct opd_err *err)
{
    if (c == 'h' || c == HELP) {
        print_help();
        exit(0);
    }
    if (c == VERSION) {
        printf("opd %s\n", OPD_VERSION);
        exit(0);
    }
    if (c == ':' || (c == '?' && optopt >= ROW))
        return opd_err_set(err, OPD_E_invalid_argument, "'%s' %s; see opd --help", argv[optind - 1],
                           c == ':' ? "wants a value after it" : "takes no value");
    const char letter[] = { '-', (char)optopt, '\0' };
    if (c == '?')
        return refuse_name(optopt ? letter : argv[optind - 1], err);
    const struct option_row *row = &rows[c - ROW];
    return (row->set == set_config) != config || set_option(o, row, optarg, err);
}

static bool read_arguments(struct options *o, int argc, char **argv, bool config,
                           struct opd_err *err)
{
    struct option longs[N_ROWS + 3] = { { "help", no_argument, NULL, HELP },
                                        { "version", no_argument, NULL, VERSION } };
    for (int i = 0; i < N_ROWS; i++)
        longs[i + 2] = (struct option){ rows[i].name,
                                        rows[i].argument ? required_argument : no_argument, NULL,
                                        ROW + i };
    int c;
    opterr = 0;
    optind = 0; // from the start, with nothing left of the last time
    while ((c = getopt_long(argc, argv, ":h", longs, NULL)) != -1)
        if (!take_option(o, c, argv, config, err))
            return false;
    if (optind < argc)
        return opd_err_set(err, OPD_E_invalid_argument, "unexpected argument '%s'; see opd --help",
                           argv[optind]);
    return true;
}

static bool read_own_config(struct options *o, struct opd_err *err)
{
    const char *config = read_env("XDG_CONFIG_HOME"), *home = read_env("HOME");
    if (o->has_config || (!config && !home))
        return true;
    char *path = config ? mem_printf("%s/opd/opd.conf", config)
                        : mem_printf("%s/.config/opd/opd.conf", home);
    FILE *f = fopen(path, "re");
    bool ok = f ? read_config(o, f, path, err)
                : errno == ENOENT || errno == ENOTDIR ||
                      opd_err_errno(err, OPD_E_invalid_argument, "%s", path);
    free(path);
    return ok;
}

static bool read_env_kernels(struct options *o, struct opd_err *err)
{
    char *folders = mem_strdup(read_env("OPD_KERNELS") ?: ""), *rest = folders, *folder;
    bool ok = true;
    while (ok && (folder = strsep(&rest, ":")) != NULL)
        ok = !folder[0] || options_add_kernels(o, folder, err);
    free(folders);
    return ok || opd_err_prefix(err, "OPD_KERNELS");
}

bool options_parse(struct options *o, int argc, char **argv, struct opd_err *err)
{
    set_defaults(o);
    // The file first, wherever it is named, so that the arguments win.
    return read_arguments(o, argc, argv, true, err) && read_own_config(o, err) &&
           read_env_kernels(o, err) && read_arguments(o, argc, argv, false, err);
}

void options_finish(struct options *o)
{
    options_clear_devices(o);
    while (o->n_kernels > 0)
        free(o->kernels[--o->n_kernels]);
    free(o->socket);
    free(o->group);
    free(o->cache);
    *o = (struct options){ 0 };
}
