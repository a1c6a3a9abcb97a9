#include "executor/cpu_line.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

extern char **environ;

enum { LIMIT_MS = 3000 };

bool cpu_line_is_internal(const char *file)
{
    static const char *const names[] = { "cpu_shim.h", "opd.cuh", "prelude", "kernel", "opd.cpp" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(file, names[i]) == 0)
            return true;
    return false;
}

static bool spawn_tool(const char *tool, const char *image, const char *address, int output,
                       pid_t *out_pid)
{
    char *const argv[] = { (char *)tool,  (char *)"-i",    (char *)"-e",
                           (char *)image, (char *)address, NULL };
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, output, 1);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
    int rc = posix_spawnp(out_pid, tool, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    return rc == 0;
}

static size_t read_answer(int fd, char *text, size_t size)
{
    uint64_t end = clock_ns() + (uint64_t)LIMIT_MS * 1000000;
    size_t n = 0;
    while (n < size - 1) {
        uint64_t now = clock_ns();
        struct pollfd p = { .fd = fd, .events = POLLIN };
        int ready = now < end ? poll(&p, 1, (int)((end - now) / 1000000)) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        ssize_t got = ready > 0 ? read(fd, text + n, size - 1 - n) : 0;
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    text[n] = '\0';
    return n;
}

// Lines of "/folder/gelu.cu:58 (discriminator 3)", what was inlined first.
static bool choose_line(char *text, char *out, size_t size)
{
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *slash = strrchr(line, '/'), *name = slash ? slash + 1 : line;
        name[strcspn(name, " ")] = '\0';
        char *colon = strrchr(name, ':');
        if (!colon || name[0] == '?' || colon[1] < '1' || colon[1] > '9')
            continue;
        *colon = '\0';
        bool internal = cpu_line_is_internal(name);
        *colon = ':';
        if (internal)
            continue;
        snprintf(out, size, "%s", name);
        return true;
    }
    return false;
}

static bool ask(const char *tool, const char *image, const char *address, char *out, size_t size)
{
    int fds[2];
    pid_t pid;
    char text[4096];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return false;
    bool begun = spawn_tool(tool, image, address, fds[1], &pid);
    close(fds[1]);
    bool found = begun && read_answer(fds[0], text, sizeof text) && choose_line(text, out, size);
    close(fds[0]);
    if (begun) {
        kill(pid, SIGKILL); // it has answered, or takes too long
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    return found;
}

static bool find_line(int image_fd, uintptr_t offset, char *out, size_t size)
{
    char image[64], address[32];
    snprintf(image, sizeof image, "/proc/%d/fd/%d", (int)getpid(), image_fd);
    snprintf(address, sizeof address, "0x%llx", (unsigned long long)offset);
    out[0] = '\0';
    return ask("addr2line", image, address, out, size) ||
           ask("llvm-addr2line", image, address, out, size);
}

// The question that the serving thread has; one at a time.
static struct {
    bool served;
    sem_t asked, answered;
    int image_fd;
    uintptr_t offset;
    char *out;
    size_t size;
    bool found;
} question;

static void *serve_questions(void *unused)
{
    for (;; sem_post(&question.answered)) {
        while (sem_wait(&question.asked) != 0)
            continue;
        question.found = find_line(question.image_fd, question.offset, question.out, question.size);
    }
    return unused;
}

void cpu_line_serve(void)
{
    pthread_t thread;
    sem_init(&question.asked, 0, 0);
    sem_init(&question.answered, 0, 0);
    question.served = pthread_create(&thread, NULL, serve_questions, NULL) == 0;
    if (question.served)
        pthread_detach(thread);
}

bool cpu_line_find(int image_fd, uintptr_t offset, char *out, size_t size)
{
    if (!question.served)
        return find_line(image_fd, offset, out, size);
    question.image_fd = image_fd;
    question.offset = offset;
    question.out = out;
    question.size = size;
    sem_post(&question.asked);
    while (sem_wait(&question.answered) != 0)
        continue;
    return question.found;
}
