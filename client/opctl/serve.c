#include "opctl/serve.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MOST_HEAD = 8192, PATIENCE_MS = 2000, BACKLOG = 128, MOST_VISITS = 16 };

// --- the address

// "[::1]:9105" into host and port. The host is empty where none is named.
static bool split(const char *address, char host[SERVE_TEXT], char port[SERVE_TEXT])
{
    const char *colon = strrchr(address, ':');
    size_t n = colon ? (size_t)(colon - address) : 0;
    bool bracketed = n >= 2 && address[0] == '[' && address[n - 1] == ']';
    if (!colon || n >= SERVE_TEXT || strlen(colon + 1) >= SERVE_TEXT)
        return false;
    if (!bracketed && memchr(address, ':', n))
        return false; // an IPv6 address without brackets
    snprintf(host, SERVE_TEXT, "%.*s", (int)n - 2 * bracketed, address + bracketed);
    snprintf(port, SERVE_TEXT, "%s", colon + 1);
    char *end;
    unsigned long number = strtoul(port, &end, 10);
    return port[0] >= '0' && port[0] <= '9' && *end == '\0' && number <= 65535;
}

static int listen_at(const struct addrinfo *at)
{
    int one = 1, fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static void name_socket(int fd, char url[SERVE_TEXT])
{
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    char host[128] = "?", port[32] = "?";
    if (getsockname(fd, (struct sockaddr *)&at, &size) == 0)
        getnameinfo((struct sockaddr *)&at, size, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    bool long_form = strchr(host, ':') != NULL;
    snprintf(url, SERVE_TEXT, "http://%s%s%s:%s/metrics", long_form ? "[" : "", host,
             long_form ? "]" : "", port);
}

int serve_open(const char *address, char url[SERVE_TEXT], char why[SERVE_TEXT])
{
    char host[SERVE_TEXT], port[SERVE_TEXT];
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV }, *list;
    if (!split(address, host, port)) {
        snprintf(why, SERVE_TEXT,
                 "--listen wants ADDR:PORT, as 127.0.0.1:9105, [::1]:9105 or :9105, not '%.100s'",
                 address);
        return -1;
    }
    int failure = getaddrinfo(host[0] ? host : "127.0.0.1", port, &hints, &list);
    if (failure) {
        snprintf(why, SERVE_TEXT, "--listen %.100s: %s", address, gai_strerror(failure));
        return -1;
    }
    int fd = -1;
    for (const struct addrinfo *at = list; at && fd < 0; at = at->ai_next)
        fd = listen_at(at);
    if (fd < 0)
        snprintf(why, SERVE_TEXT, "--listen %.100s: %s", address, strerror(errno));
    else
        name_socket(fd, url);
    freeaddrinfo(list);
    return fd;
}

// --- one request

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static bool wait_until(int fd, short events, int64_t end)
{
    int64_t left = end - now_ms();
    struct pollfd p = { .fd = fd, .events = events };
    return left > 0 && poll(&p, 1, (int)left) > 0;
}

// All up to the empty line. Whoever is slower, or says more, is not answered: false.
static bool read_head(int fd, char head[MOST_HEAD + 1], int64_t end)
{
    size_t size = 0;
    while (size < MOST_HEAD && wait_until(fd, POLLIN, end)) {
        ssize_t n = recv(fd, head + size, MOST_HEAD - size, 0);
        if (n <= 0)
            return false;
        size += (size_t)n;
        head[size] = '\0';
        if (strstr(head, "\r\n\r\n") || strstr(head, "\n\n"))
            return true;
    }
    return false;
}

static void send_all(int fd, const char *bytes, size_t size, int64_t end)
{
    while (size > 0 && wait_until(fd, POLLOUT, end)) {
        ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return;
        bytes += n > 0 ? n : 0;
        size -= n > 0 ? (size_t)n : 0;
    }
}

static void reply(int fd, const char *status, const char *more, const char *text, size_t size,
                  bool head_only)
{
    char head[512];
    int64_t end = now_ms() + PATIENCE_MS;
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %s\r\n%sContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                     "Content-Length: %zu\r\nConnection: close\r\n\r\n",
                     status, more, size);
    send_all(fd, head, (size_t)n, end);
    if (!head_only)
        send_all(fd, text, size, end);
}

static void answer_one(int fd, serve_fn *answer, void *data)
{
    static const char elsewhere[] = "The metrics are at /metrics.\n", refused[] = "GET /metrics\n";
    char head[MOST_HEAD + 1], method[8], path[256], *text = NULL;
    size_t size = 0;
    if (!read_head(fd, head, now_ms() + PATIENCE_MS) ||
        sscanf(head, "%7s %255s HTTP/1.", method, path) != 2)
        return;
    path[strcspn(path, "?")] = '\0';
    bool head_only = strcmp(method, "HEAD") == 0;
    if (!head_only && strcmp(method, "GET") != 0) {
        reply(fd, "405 Method Not Allowed", "Allow: GET, HEAD\r\n", refused, strlen(refused),
              false);
        return;
    }
    if (strcmp(path, "/metrics") != 0) {
        reply(fd, "404 Not Found", "", elsewhere, strlen(elsewhere), head_only);
        return;
    }
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return;
    bool good = answer(out, data);
    if (fclose(out) == 0)
        reply(fd, good ? "200 OK" : "503 Service Unavailable", "", text, size, head_only);
    free(text);
}

// --- all requests

struct visit {
    int fd;
    serve_fn *answer;
    void *data;
};

static sem_t places;

static void *receive_visit(void *data)
{
    struct visit visit = *(struct visit *)data;
    free(data);
    answer_one(visit.fd, visit.answer, visit.data);
    shutdown(visit.fd, SHUT_WR);
    close(visit.fd);
    sem_post(&places);
    return NULL;
}

// In a thread; where there can be none, here.
static void receive(struct visit *visit)
{
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    bool started = pthread_create(&thread, &attr, receive_visit, visit) == 0;
    pthread_attr_destroy(&attr);
    if (!started)
        receive_visit(visit);
}

static int accept_one(int fd)
{
    for (;;) {
        int client = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (client >= 0 || errno == EBADF || errno == EINVAL || errno == ENOTSOCK)
            return client;
        // It has hung up; or descriptors are short, for now.
        poll(NULL, 0, errno == EMFILE || errno == ENFILE || errno == ENOMEM ? 100 : 0);
    }
}

void serve_all(int fd, serve_fn *answer, void *data)
{
    sem_init(&places, 0, MOST_VISITS);
    for (;;) {
        while (sem_wait(&places) < 0)
            continue; // a signal
        int client = accept_one(fd);
        struct visit *visit = client >= 0 ? malloc(sizeof *visit) : NULL;
        if (visit) {
            *visit = (struct visit){ client, answer, data };
            receive(visit);
            continue;
        }
        if (client < 0)
            return;
        close(client); // no memory
        sem_post(&places);
    }
}
