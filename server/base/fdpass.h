#pragma once

// Bytes and file descriptors through a Unix socket. Received descriptors are close-on-exec and
// belong to the caller.

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { FDPASS_MAX = 16 }; // descriptors in one message

// Sends bytes, with the descriptors attached to the first of them. Returns what write() would;
// never raises SIGPIPE.
ssize_t fdpass_send(int sock, const void *bytes, size_t size, const int *fds, int n_fds);

// Receives bytes and up to FDPASS_MAX descriptors. Returns what read() would. Where the kernel had
// to drop descriptors (more than fit), all are closed and -1 comes with errno EMSGSIZE.
ssize_t fdpass_recv(int sock, void *bytes, size_t size, int fds[FDPASS_MAX], int *n_fds);

// Receives one descriptor with a single byte, and waits for it. -1 on any failure.
int fdpass_recv_one(int sock);

// Descriptors that are kept back for what the daemon itself must be able to start: an executor in
// place of one that died, a compiler.
enum { FDPASS_KEPT_BACK = 24 };
// A descriptor that was made because of a client is given back as it is; where only those that are
// kept back are left, it is closed, and -1 comes with EMFILE. -1 with its errno stays.
int fdpass_claim(int fd);
int fdpass_left(int fd); // how many more there may be beside this one, the newest

// A memfd of that many zero bytes, sealed against shrinking and growing; -1 with errno.
int fdpass_memfd(const char *name, size_t size);
