#include "executor/cpu_confine.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "executor/cpu_line.h"

#if defined(__x86_64__)
#define NATIVE AUDIT_ARCH_X86_64
enum { FOREIGN_CALLS = 0x40000000 }; // those of x32
#elif defined(__aarch64__)
#define NATIVE AUDIT_ARCH_AARCH64
enum { FOREIGN_CALLS = 0x7fffffff };
#endif

#ifdef NATIVE

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)
#define IF(op, value, then) BPF_JUMP(BPF_JMP | (op) | BPF_K, value, 0, 1), then
#define REFUSE(nr) IF(BPF_JEQ, nr, RETURN(SECCOMP_RET_KILL_PROCESS))
#define NO_SUCH_CALL RETURN(SECCOMP_RET_ERRNO | ENOSYS)

static bool add_filter(void)
{
    static struct sock_filter filter[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NATIVE, 1, 0),
        NO_SUCH_CALL,
        LOAD(nr),
        IF(BPF_JGE, FOREIGN_CALLS, NO_SUCH_CALL),
        IF(BPF_JEQ, SYS_clone3, NO_SUCH_CALL), // its flags cannot be seen; libc then takes clone
#ifdef SYS_fork
        REFUSE(SYS_fork),
        REFUSE(SYS_vfork),
#endif
        REFUSE(SYS_execve),
        REFUSE(SYS_execveat),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
        RETURN(SECCOMP_RET_ALLOW),
        LOAD(args[0]), // its lower half: the flags, on these machines
        IF(BPF_JSET, CLONE_THREAD, RETURN(SECCOMP_RET_ALLOW)),
        RETURN(SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

#else

static bool add_filter(void)
{
    errno = ENOSYS;
    return false;
}

#endif

bool cpu_confine(struct opd_err *err)
{
    cpu_line_serve();
    return add_filter() ||
           opd_err_errno(err, OPD_E_unavailable, "kernels cannot be kept from starting processes");
}
