// Every way in which a kernel may end badly, by name; "none" ends well.
//
//! op      fault(Tensor(a!) x, *, str kind="none") -> Tensor y
//! dtypes  float32
//! words   kind none write read null misaligned trap assertion recursion jump hang \
//!           divide illegal bus abort leave
//! shape   x [N]
//! require N >= 64 : "x is {x}, expected at least 64 elements"
//! require cuda || kind != "misaligned" && kind != "trap" && kind != "jump" : \
//!           "{kind} is a fault of GPUs"
//! require cpu || kind != "divide" && kind != "illegal" && kind != "bus" && \
//!           kind != "abort" && kind != "leave" : "{kind} is a fault of the CPU"
//! shape   y [N]
//! example x=[64]
//
//! forward
//!   kernel  fault
//!   block   64
//!   grid    2
//!   bind    kind = kind

#ifdef OPD_CPU
extern "C" {
void abort(void);
void _exit(int);
int raise(int);
}
#endif

enum {
    NONE, WRITE, READ, NULL_POINTER, MISALIGNED, TRAP, ASSERTION, RECURSION, JUMP, HANG,
    DIVIDE, ILLEGAL, BUS, ABORT, LEAVE
};

__device__ __noinline__ float recurse(volatile float *from, int depth)
{
    volatile float frame[256];
    for (int i = 0; i < 256; i++)
        frame[i] = from[i % 64] + depth;
    return depth < 0 ? frame[0] : recurse(frame, depth + 1) + frame[255];
}

extern "C" __global__ void fault(float *x, float *y, int N, int kind)
{
    const int i = threadIdx.x;
    const int64_t far = int64_t(1) << 40;
    y[i] = x[i] + 1;
    if (blockIdx.x != 1 || kind == NONE)
        return;
    if (kind == WRITE)
        x[far + i] = 1;
    if (kind == READ)
        x[i] = x[far + i];
    if (kind == NULL_POINTER)
        ((volatile float *)nullptr)[i] = 1;
    if (kind == ASSERTION)
        assert(x[i] != x[i]);
    if (kind == RECURSION)
        x[i] = recurse(x, 0);
    if (kind == HANG)
        for (volatile float *p = x; *p == *p || *p != *p;)
            ;
#ifdef OPD_CPU
    volatile int zero = 0;
    if (kind == DIVIDE)
        x[i] = i / zero;
    if (kind == ILLEGAL)
        __builtin_trap();
    if (kind == BUS)
        raise(7);
    if (kind == ABORT)
        abort();
    if (kind == LEAVE)
        _exit(0);
#else
    if (kind == MISALIGNED)
        *(volatile float *)((char *)x + 1) = 1;
    if (kind == TRAP)
        __trap();
    if (kind == JUMP)
        ((void (*)(int))x)(i);
#endif
}
