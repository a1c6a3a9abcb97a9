#pragma once

// What a connection shares with the daemon's processes, in one capsule: the word by which calls are
// told to be done (base/word.h), and a lane behind it (base/lane.h), by which replays of graphs go,
// and calls that come again on the same tensors. As libopd does it (client/c/lane_call.h): a result
// that its user has dropped is kept for the next call that makes it. Which ones: those of calls
// that were noted, made since lane_untie(), which comes before any request by which something else
// may come to hold a tensor's memory. What is asked of the daemon for it is in _lanes.py. All with
// Python's lock held.

#include "c/lane_use.h"
#include "native_call.h"

// INPUTS: of a call. ALIKE: results of one call on the same inputs; a loop has two, if it drops
// the last one when it has the next.
enum { LANE_INPUTS = 8, LANE_ALIKE = 4, LANE_RECENT = 8 };

struct lane_call {
    PyObject *head; // of the handle; NULL: there is no call here
    PyObject *inputs[LANE_INPUTS];
    Py_ssize_t n_inputs;
    PyObject *wire; // the result's id, while it is kept; NULL: its user has it
    uint64_t tie;   // of the tensor that the result is; the least: the longest ago
    struct lane_use use;
    unsigned version; // that it runs
};

struct shared {
    struct word *word;
    struct word_waits waits;
    struct lane *lane; // NULL: none is open
    PyObject *file;    // of its bell
    int bell;
    bool refused; // there will be none
    bool asks;    // whether an entry was begun: meanwhile there is none
    unsigned epoch;
    struct word_waits lane_waits;
    unsigned n_replays, n_offered; // by requests, since it was looked whether there is a lane
    uint64_t ties; // given so far
    struct lane_call calls[LANE_CALLS];
    struct {
        uintptr_t hash;
        unsigned n;
    } recent[LANE_RECENT]; // calls: how often on the same inputs
    size_t next_recent;
};

// For the module; docstrings say what they do.
PyObject *lane_share(PyObject *module, PyObject *fd);
PyObject *lane_open(PyObject *module, PyObject *given);
PyObject *lane_disarm(PyObject *module, PyObject *given);
PyObject *lane_untie(PyObject *module, PyObject *given);
PyObject *lane_arm(PyObject *module, PyObject *given);

struct shared *lane_shared(PyObject *capsule); // NULL: None
// A kept result of such a call, which is tied; NULL: there is none, perhaps with an error.
PyObject *lane_take(PyObject *const parts[], PyObject *args);
// A call has gone by a request: if such a call comes often, its result is tied.
void lane_note(PyObject *const parts[], PyObject *args, struct tensor *made);
// A tensor that is tied ends. True: its id is kept.
bool lane_give_back(struct tensor *tensor);
void lane_cut(struct tensor *tensor); // it is tied no more
// It becomes another, that is yet to be made. False: an error.
bool lane_renew(PyObject *const parts[], struct tensor *made);

// With the connection locked and nothing in flight, for a tied `made`. None, or the reply; NULL: it
// has not happened, perhaps with an error.
PyObject *lane_run(PyObject *const parts[], PyObject *handle, PyObject *expected,
                   PyObject *args, struct tensor *made);
// The same of a graph that was armed.
PyObject *lane_replay(PyObject *const parts[]);
// A replay went by a request. Is it to be seen to that there is a lane?
bool lane_is_wanted(PyObject *const parts[]);
