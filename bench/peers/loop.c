/* Decisions made one after the other in C, with the clock around them: what is left without a call from Python. */
#include <time.h>

typedef int decide(void *self, const float *observation, float *outputs);

/* Nanoseconds of `count` decisions on `rows` observations of `size` numbers, gone through from `*at` on. */
double loop_ns(decide *what, void *self, float *outputs, const float *observations, long rows, long size, long count,
               long *at)
{
    struct timespec begin, end;
    static volatile int kept; /* so that no decision is left out */
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < count; i++) {
        kept = what(self, observations + *at * size, outputs);
        *at = *at + 1 < rows ? *at + 1 : 0;
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    return 1e9 * (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec);
}
