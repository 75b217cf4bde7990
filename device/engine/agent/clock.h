#ifndef AGENT_CLOCK_H
#define AGENT_CLOCK_H
#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC. */
static inline int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
#endif
