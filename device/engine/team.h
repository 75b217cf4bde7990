/* Several threads at one decision. A pair of dense layers is cut into slices of the first one's outputs: whoever has a
 * slice computes these outputs, and with them as rows a sum of its own of the second layer. Then the leader, the thread
 * that decides, adds the sums up; of whole numbers, so that nothing depends on who was when.
 *
 * The leader never waits for a thread that has not begun: slices are claimed, and it takes itself what nobody has. A
 * thread that sleeps, has not started or has ended costs time and nothing else. Threads are the caller's: it lends them
 * to native_work. They wait for the next pair spinning, and after a while in the kernel, which is asked without a C
 * library. */
#ifndef NATIVE_TEAM_H
#define NATIVE_TEAM_H
#include "engine.h"
#include "kernels.h"

enum {
    LEAST_WEIGHTS = 1 << 18,        /* of a pair: a smaller one is over before a second thread has heard of it */
    STOP = 1                        /* in a round's number, which grows by 2 */
};

struct native_slice {               /* a cache line, so that two threads do not write to the same one */
    _Alignas(NATIVE_LINE) struct native *own; /* room to compute it: an engine of the same artifact */
    uint32_t claimed, done;         /* the last round in which somebody took it, and was through with it */
};

struct native_team {
    _Alignas(NATIVE_LINE) uint32_t round; /* the pair that is at work; native_work sleeps on it */
    uint32_t asleep;                /* threads that may be in the kernel, or on their way there */
    uint32_t threads;               /* with the leader; 0: nobody helps */
    unsigned layer;                 /* the first one of the pair; written while no slice is claimed */
    struct native_slice slice[NATIVE_THREADS];
};

#if !defined __linux__
enum { FUTEX, YIELD, SPINS = 0, ALONE = 1 }; /* without this kernel nobody helps */
INLINE void breathe(void) {}
INLINE long call(long number, const void *a, long b, long c) { return (void)number, (void)a, (void)b, (void)c, 0; }
#elif defined __x86_64__
enum { FUTEX = 202, YIELD = 24, SPINS = 4000, ALONE = 0 };
INLINE void breathe(void) { __builtin_ia32_pause(); }
INLINE long call(long number, const void *a, long b, long c)
{
    register long r10 __asm__("r10") = 0; /* a futex waits for ever */
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}
#elif defined __aarch64__
enum { FUTEX = 98, YIELD = 124, SPINS = 40000, ALONE = 0 };
INLINE void breathe(void) { __asm__ volatile("yield" ::: "memory"); }
INLINE long call(long number, const void *a, long b, long c)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = (long)a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}
#else
enum { FUTEX = 240, YIELD = 158, SPINS = 40000, ALONE = 0 };
INLINE void breathe(void) { __asm__ volatile("yield" ::: "memory"); }
INLINE long call(long number, const void *a, long b, long c)
{
    register long r7 __asm__("r7") = number, r0 __asm__("r0") = (long)a, r1 __asm__("r1") = b, r2 __asm__("r2") = c;
    register long r3 __asm__("r3") = 0;
    __asm__ volatile("svc 0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2), "r"(r3) : "memory");
    return r0;
}
#endif
enum { WAIT = 128, WAKE = 129 };    /* FUTEX_WAIT and FUTEX_WAKE of this process alone */

/* The next round's number, another than `seen`. A sleeper says so before the kernel compares the number again, and who
 * changes it looks for sleepers after: one of them sees the other. */
static uint32_t next_round(struct native_team *team, uint32_t seen)
{
    uint32_t now;
    for (int i = 0; i < SPINS; i++) {
        if ((now = __atomic_load_n(&team->round, __ATOMIC_ACQUIRE)) != seen) return now;
        breathe();
    }
    while ((now = __atomic_load_n(&team->round, __ATOMIC_ACQUIRE)) == seen) {
        __atomic_fetch_add(&team->asleep, 1, __ATOMIC_SEQ_CST);
        call(FUTEX, &team->round, WAIT, (long)seen);
        __atomic_fetch_sub(&team->asleep, 1, __ATOMIC_SEQ_CST);
    }
    return now;
}

static void wake(struct native_team *team)
{
    if (__atomic_load_n(&team->asleep, __ATOMIC_SEQ_CST)) call(FUTEX, &team->round, WAKE, NATIVE_THREADS);
}

/* Whether the caller is to compute it in this round: every slice was claimed in the one before. */
static int claims(struct native_slice *slice, uint32_t round)
{
    uint32_t before = round - 2;
    return __atomic_compare_exchange_n(&slice->claimed, &before, round, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* Somebody who has a processor, or will have one, is at it. */
static void wait_for(struct native_slice *slice, uint32_t round)
{
    for (int i = 0; __atomic_load_n(&slice->done, __ATOMIC_ACQUIRE) != round; i++) {
        if (i < SPINS) breathe();
        else call(YIELD, 0, 0, 0);
    }
}
#endif
