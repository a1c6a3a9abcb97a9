#pragma once

// Time: monotonic, and what the clock on the wall says.

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline double clock_unix(void) // seconds
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline double clock_ms_since(uint64_t ns)
{
    return (double)(clock_ns() - ns) / 1e6;
}
