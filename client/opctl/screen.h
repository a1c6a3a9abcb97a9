#pragma once

// A terminal that is drawn over, and given back as it was: also where a signal ends the program,
// and while it is stopped (^Z). One at a time.

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

enum { // what is no byte of a key
    SCREEN_NONE = 0,
    SCREEN_UP = 256,
    SCREEN_DOWN,
    SCREEN_PAGE_UP,
    SCREEN_PAGE_DOWN,
    SCREEN_HOME,
    SCREEN_RESIZED,
    SCREEN_ENDED, // by a signal: screen_leave() carries it out
    SCREEN_READABLE,
};

// Takes standard output over, and the keys of standard input where that is a terminal.
void screen_enter(void);
// Gives it back, and ends the program where a signal was to do that.
void screen_leave(void);

// Draws a frame: its lines, each ended by a newline, of which no more are shown than there is room
// for.
void screen_draw(const char *frame, size_t size);

// Waits for a key, or that `fd` can be read (-1: none), or so many seconds.
int screen_wait(int fd, double seconds);
