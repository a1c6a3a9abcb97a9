#include "executor/cpu_line.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/child.h"

enum { LIMIT_MS = 3000, ANSWER_LIMIT = 4096 };

bool cpu_line_is_internal(const char *file)
{
    static const char *const names[] = { "cpu_shim.h", "opd.cuh", "prelude", "kernel", "opd.cpp" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(file, names[i]) == 0)
            return true;
    return strncmp(file, "opd-", 4) == 0; // headers of the field
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
    char *const argv[] = { (char *)tool,  (char *)"-i",    (char *)"-e",
                           (char *)image, (char *)address, NULL };
    struct buf answer = { 0 };
    int status;
    bool found = child_run(argv, NULL, LIMIT_MS, ANSWER_LIMIT, &answer, &status, NULL) &&
                 choose_line((char *)(uintptr_t)buf_str(&answer), out, size);
    buf_finish(&answer);
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
