// A kernel on the CPU device that harms the process it runs in, where no guard can see it: what it
// shares with the broker, its descriptors, its signals.
//
//! op      wild(Tensor x, *, str how="none") -> Tensor y
//! dtypes  float32
//! words   how none ones zeros noise close stop
//! shape   x [N]
//! require cpu : "wild is for the CPU device"
//! shape   y [N]
//
//! forward
//!   kernel  wild
//!   grid    1
//!   block   1
//!   bind    how = how

#ifdef OPD_CPU
extern "C" {
struct _IO_FILE;
_IO_FILE *fopen(const char *path, const char *mode);
int fclose(_IO_FILE *file);
char *fgets(char *line, int size, _IO_FILE *file);
int sscanf(const char *text, const char *format, ...);
char *strstr(const char *text, const char *part);
int close(int fd);
int raise(int number);
}

enum { NONE, ONES, ZEROS, NOISE, CLOSE, STOP };

// Over the memory of the rings, in which commands come and reports go.
static void scribble(int how)
{
    char line[512];
    unsigned long begin, end;
    unsigned noise = 1;
    _IO_FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "opd-rings") && sscanf(line, "%lx-%lx", &begin, &end) == 2)
            for (unsigned long at = begin; at < end; at++) {
                noise = noise * 1664525 + 1013904223;
                *(volatile char *)at = how == ONES ? -1 : how == ZEROS ? 0 : char(noise >> 24);
            }
    fclose(maps);
}
#endif

extern "C" __global__ void wild(const float *x, float *y, int N, int how)
{
    for (int i = 0; i < N; i++)
        y[i] = x[i] + 1;
#ifdef OPD_CPU
    if (how == ONES || how == ZEROS || how == NOISE)
        scribble(how);
    if (how == CLOSE)
        for (int fd = 0; fd < 256; fd++)
            close(fd);
    if (how == STOP)
        raise(19);
#endif
}
