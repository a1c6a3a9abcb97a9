// count PID: the system calls of a process's first thread. It says "ready", counts until its
// standard input ends, and says what it has counted, as JSON: {number of the call: how many}. Where
// it may not look it exits with 2, and says why.
// count -i COMMAND...: runs a program, whose first thread turns counting on and off by a SIGUSR2 of
// its own, and says how many user instructions were in between, a number for each time.

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_CALLS = 1024 };

static volatile sig_atomic_t over;

static void end(int signal)
{
    (void)signal;
    over = 1;
}

static void give_up(const char *what)
{
    fprintf(stderr, "count: %s: %s\n", what, strerror(errno));
    exit(2);
}

// What the process has stopped for.
static int await_stop(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR)
            give_up("waitpid");
        if (over)
            ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
    }
    if (!WIFSTOPPED(status)) {
        fprintf(stderr, "count: the process has ended\n");
        exit(1);
    }
    return status >> 8;
}

static void note_call(pid_t pid, uint64_t calls[MAX_CALLS])
{
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) < 0)
        give_up("PTRACE_GET_SYSCALL_INFO");
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY && info.entry.nr < MAX_CALLS)
        calls[info.entry.nr]++;
}

static void count(pid_t pid, uint64_t calls[MAX_CALLS])
{
    int signal = 0, stop;
    if (ptrace(PTRACE_SEIZE, pid, NULL, PTRACE_O_TRACESYSGOOD) < 0)
        give_up("the process cannot be traced");
    ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
    await_stop(pid);
    printf("ready\n");
    fflush(stdout);
    while (!over) {
        if (ptrace(PTRACE_SYSCALL, pid, NULL, signal) < 0)
            give_up("PTRACE_SYSCALL");
        stop = await_stop(pid);
        signal = 0;
        if (stop == (SIGTRAP | 0x80))
            note_call(pid, calls);
        else if (stop < 0x100 && stop != SIGTRAP)
            signal = stop; // is passed on
    }
    ptrace(PTRACE_DETACH, pid, NULL, signal);
}

static void *await_end(void *thread)
{
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0)
        continue;
    while (!over) { // it may not wait yet
        pthread_kill(*(pthread_t *)thread, SIGUSR1);
        usleep(1000);
    }
    return NULL;
}

static int run_counted(char **command)
{
    int status, signal = 0;
    bool counting = false;
    unsigned long long n = 0;
    pid_t pid = fork();
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        execvp(command[0], command);
        _exit(127);
    }
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
        signal = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
        n++;
        if (signal == SIGUSR2) {
            if (counting)
                printf("%llu\n", n);
            counting = !counting;
            signal = 0;
            n = 0;
        }
        if (ptrace(counting ? PTRACE_SINGLESTEP : PTRACE_CONT, pid, NULL, signal) < 0)
            give_up("ptrace");
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

int main(int argc, char **argv)
{
    static uint64_t calls[MAX_CALLS];
    pthread_t self = pthread_self(), waiter;
    struct sigaction action = { .sa_handler = end };
    if (argc > 2 && strcmp(argv[1], "-i") == 0)
        return run_counted(argv + 2);
    if (argc != 2)
        return 2;
    sigaction(SIGUSR1, &action, NULL);
    pthread_create(&waiter, NULL, await_end, &self);
    count((pid_t)atoi(argv[1]), calls);
    const char *between = "{";
    for (int i = 0; i < MAX_CALLS; i++)
        if (calls[i] > 0) {
            printf("%s\"%d\": %llu", between, i, (unsigned long long)calls[i]);
            between = ", ";
        }
    printf("%s}\n", *between == '{' ? between : "");
    return 0;
}
