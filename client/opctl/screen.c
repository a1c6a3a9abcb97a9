#include "opctl/screen.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "opctl/term.h"

// The other screen of the terminal, without a cursor; and back.
#define ENTER "\x1b[?1049h\x1b[?25l"
#define LEAVE "\x1b[?25h\x1b[?1049l"

static const int caught[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH };
enum { CAUGHT = sizeof caught / sizeof *caught };

// What ends a program that is wrong.
static const int fatal[] = { SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL };
enum { FATAL = sizeof fatal / sizeof *fatal };

static struct sigaction before[CAUGHT], before_fatal[FATAL];
static struct termios cooked;
static bool is_terminal, has_keys; // standard input; false once no keys come any more
static sigset_t waiting;           // while it waits, these signals come through
static volatile sig_atomic_t ended, resized, stopped, continued;
static char typed[64]; // and not taken yet: from typed_at on
static size_t typed_at, n_typed;

static void note(int signal)
{
    if (signal == SIGWINCH)
        resized = 1;
    else if (signal == SIGCONT)
        continued = 1;
    else if (signal == SIGTSTP)
        stopped = 1;
    else
        ended = signal;
}

static void put(const char *s, size_t size)
{
    for (ssize_t n; size > 0; s += n, size -= (size_t)n)
        if ((n = write(STDOUT_FILENO, s, size)) < 0 && (n = 0, errno != EINTR))
            return;
}

static void take_over(void)
{
    struct termios raw = cooked;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    if (is_terminal)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    put(ENTER, strlen(ENTER));
}

static void give_back(void)
{
    put(LEAVE, strlen(LEAVE));
    if (is_terminal)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &cooked);
}

static void fail(int signal)
{
    give_back();
    raise(signal); // once more, and not to here
}

void screen_enter(void)
{
    sigset_t held;
    struct sigaction noted = { .sa_handler = note };
    struct sigaction failed = { .sa_handler = fail, .sa_flags = (int)SA_RESETHAND };
    sigemptyset(&held);
    for (int i = 0; i < CAUGHT; i++)
        sigaddset(&held, caught[i]);
    sigprocmask(SIG_BLOCK, &held, &waiting);
    for (int i = 0; i < CAUGHT; i++) {
        sigaction(caught[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) // as nohup has it
            sigaction(caught[i], &noted, NULL);
        sigdelset(&waiting, caught[i]);
    }
    fflush(stdout);
    is_terminal = isatty(STDIN_FILENO) && tcgetpgrp(STDIN_FILENO) == getpgrp() &&
                  tcgetattr(STDIN_FILENO, &cooked) == 0;
    has_keys = is_terminal;
    for (int i = 0; i < FATAL; i++)
        sigaction(fatal[i], &failed, &before_fatal[i]);
    take_over();
}

void screen_leave(void)
{
    give_back();
    for (int i = 0; i < CAUGHT; i++)
        sigaction(caught[i], &before[i], NULL);
    for (int i = 0; i < FATAL; i++)
        sigaction(fatal[i], &before_fatal[i], NULL);
    sigprocmask(SIG_SETMASK, &waiting, NULL);
    if (ended)
        raise(ended);
}

// Each line over what was there, and nothing left behind them.
void screen_draw(const char *frame, size_t size)
{
    char *text = NULL;
    size_t length = 0;
    int rows = term_rows();
    FILE *out = open_memstream(&text, &length);
    if (!out)
        return;
    fputs("\x1b[H", out);
    for (size_t at = 0; at < size && rows > 0; rows--) {
        const char *end = memchr(frame + at, '\n', size - at);
        size_t n = end ? (size_t)(end - frame) - at : size - at;
        fwrite(frame + at, 1, n, out);
        at += n + 1;
        fputs("\x1b[K", out);
        if (rows > 1 && at < size)
            fputs("\r\n", out);
    }
    fputs("\x1b[J", out);
    if (fclose(out) == 0)
        put(text, length);
    free(text);
}

// What a terminal sends for a key.
static int read_key(void)
{
    static const struct {
        const char *bytes;
        int key;
    } keys[] = {
        { "\x1b[A", SCREEN_UP },   { "\x1bOA", SCREEN_UP },       { "\x1b[B", SCREEN_DOWN },
        { "\x1bOB", SCREEN_DOWN }, { "\x1b[5~", SCREEN_PAGE_UP }, { "\x1b[6~", SCREEN_PAGE_DOWN },
        { "\x1b[H", SCREEN_HOME }, { "\x1bOH", SCREEN_HOME },     { "\x1b[1~", SCREEN_HOME },
    };
    const char *at = typed + typed_at;
    size_t left = n_typed - typed_at;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        size_t length = strlen(keys[i].bytes);
        if (left >= length && memcmp(at, keys[i].bytes, length) == 0) {
            typed_at += length;
            return keys[i].key;
        }
    }
    typed_at = *at == '\x1b' ? n_typed : typed_at + 1; // no letter of another key is one
    return *at == '\x1b' ? SCREEN_NONE : (unsigned char)*at;
}

static void read_keys(void)
{
    ssize_t n = read(STDIN_FILENO, typed, sizeof typed);
    typed_at = 0;
    n_typed = n > 0 ? (size_t)n : 0;
    has_keys = n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
}

// What a signal has brought; SCREEN_NONE: nothing.
static int take_signal(void)
{
    if (stopped) {
        stopped = 0;
        give_back();
        raise(SIGSTOP);
        continued = 1;
    }
    if (continued) { // the shell has had the terminal meanwhile
        continued = 0;
        take_over();
        resized = 1;
    }
    bool redraw = resized;
    resized = 0;
    return ended ? SCREEN_ENDED : redraw ? SCREEN_RESIZED : SCREEN_NONE;
}

int screen_wait(int fd, double seconds)
{
    struct pollfd fds[2] = { { .fd = fd, .events = POLLIN }, { .fd = -1, .events = POLLIN } };
    struct timespec t = { .tv_sec = (time_t)seconds };
    int key = SCREEN_NONE;
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    while (typed_at < n_typed && key == SCREEN_NONE)
        key = read_key();
    if (key != SCREEN_NONE)
        return key;
    fds[1].fd = has_keys ? STDIN_FILENO : -1;
    int n = ppoll(fds, 2, &t, &waiting);
    if ((key = take_signal()) != SCREEN_NONE || n <= 0)
        return key;
    if (fds[1].revents) {
        read_keys();
        return n_typed ? read_key() : SCREEN_NONE;
    }
    return SCREEN_READABLE;
}
