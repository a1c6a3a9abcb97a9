#include "memory/shm.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fdpass.h"

void shm_free(struct shm *shm)
{
    for (int i = 0; i < DEV_MAX_DEVICES; i++)
        if (shm->spaces[i])
            shm->spaces[i]->ops->unmap(shm->spaces[i], shm->regions[i]);
    close(shm->fd);
    free(shm);
}

bool shm_check(const char *what, int fd, int64_t size, struct opd_err *err)
{
    struct stat st;
    int seals = fd >= 0 ? fcntl(fd, F_GET_SEALS) : -1;
    if (fd < 0)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: no file descriptor came with the message (SCM_RIGHTS)", what);
    if (fdpass_left(fd) < FDPASS_KEPT_BACK)
        return opd_err_set(err, OPD_E_out_of_memory,
                           "%s: the daemon keeps its last %d file descriptors for itself; close "
                           "shared memory, or raise its limit (ulimit -n)",
                           what, FDPASS_KEPT_BACK);
    if (seals < 0 || !(seals & F_SEAL_SHRINK))
        return opd_err_set(
            err, OPD_E_invalid_argument,
            "%s: the descriptor is no memfd that is sealed against shrinking; "
            "use memfd_create(MFD_ALLOW_SEALING) and fcntl(F_ADD_SEALS, F_SEAL_SHRINK)",
            what);
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR ||
        (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)))
        return opd_err_set(err, OPD_E_invalid_argument, "%s: the memfd is not writable", what);
    if (fstat(fd, &st) < 0 || size <= 0 || size > st.st_size)
        return opd_err_set(err, OPD_E_invalid_argument,
                           "%s: size %" PRId64 ", the memfd has %lld bytes", what, size,
                           (long long)st.st_size);
    return (uint64_t)size <= SHM_MOST ||
           opd_err_set(err, OPD_E_invalid_argument,
                       "%s: size %" PRId64 " is more than can be mapped; at most %" PRIu64, what,
                       size, SHM_MOST);
}
