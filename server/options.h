#pragma once

// What the daemon was told on its command line and in its configuration file. main reads it once;
// nobody reads the environment later.

#include <stdbool.h>
#include <stdint.h>

#include "executor/devwire.h"
#include "base/err.h"

enum { OPTIONS_MAX_FOLDERS = 32, OPTIONS_MAX_COMPILERS = 64 };

struct options {
    char *socket;                   // path
    char *group;                    // whose members may connect too; "": none
    char *devices[DEV_MAX_DEVICES]; // "cpu", "cuda:0"
    int n_devices;
    bool auto_devices;                  // take what there is: a GPU that is absent is no error
    bool has_config;                    // a file was named
    char *kernels[OPTIONS_MAX_FOLDERS]; // folders, the shipped one first
    int n_kernels;
    char *cache;             // folder; "": none
    uint64_t cache_limit;    // bytes that it may take
    int compilers;           // processes
    uint64_t memory_limit;   // bytes of device memory on each device; 0: what the device has
    double deadline;         // seconds that a request may take on a device
    double compile_deadline; // seconds that one compile may take
    double keep;             // seconds for which named tensors outlive a daemon that is killed
    int faults;              // that are kept; 0: none
    uint64_t fault_size;     // bytes of the inputs that are kept of one
    uint64_t client_memory;  // bytes of device memory that one client may hold on each; 0: all
    int client_requests;     // of one client on devices at a time; the others wait in its socket
    uint64_t max_message;    // bytes
    int max_launches;        // of one request
    int max_connections;
    bool spare;    // a second executor waits to take over, where it costs little
    bool checks_first; // on a GPU the first run of each signature of an edited version is checked
    bool own_blas; // multiply matrices by opd's own kernel alone
    bool debug;    // every launch is waited for before the next
    bool warm;     // compile every operator's examples at start
    bool prove;    // prove gradients after each edit
    bool spin;     // look for what comes next for a while before sleeping
    int log_level;
};

// Fills everything from defaults, the file named by --config or else the user's own, the
// environment and the arguments; the later wins. Prints help or version and exits where asked.
// Errors: invalid_argument, naming the option.
bool options_parse(struct options *o, int argc, char **argv, struct opd_err *err);
// One more folder of kernels, unless it is among them. Errors: invalid_argument.
bool options_add_kernels(struct options *o, const char *folder, struct opd_err *err);
void options_finish(struct options *o);
// option_devices.c: the devices of a list as --device takes it, instead of those that there are.
// Errors: invalid_argument, naming --device.
bool options_set_devices(struct options *o, const char *list, struct opd_err *err);
void options_clear_devices(struct options *o);
