/* Run times, and what may be said of them: as device/agent/measure.py, whose words and numbers these are. */
#ifndef AGENT_MEASURE_H
#define AGENT_MEASURE_H
#include "text.h"

#ifdef __aarch64__                  /* bench/qemu_counter counts between these; to a processor they are no-ops */
#define COUNT_FROM_HERE __asm__ volatile("hint #0x60" ::: "memory")
#define COUNT_TO_HERE __asm__ volatile("hint #0x61" ::: "memory")
#else
#define COUNT_FROM_HERE
#define COUNT_TO_HERE
#endif

void sort(uint32_t *, int n);
/* STATISTICS and samples_ns of the protocol. */
void put_statistics(struct text *, const uint32_t *sorted, int n);
#endif
