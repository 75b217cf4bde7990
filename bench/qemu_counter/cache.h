/* Caches of a Cortex-A53 core, as tags only: which line is where, and who was used last.
 *
 * Sizes of the BCM2837: L1I 32 KB 2-way, L1D 32 KB 4-way, L2 512 KB 16-way, lines of 64 bytes (Arm DDI 0500,
 * sections 2.1.4, 2.1.5 and 2.1.7; sizes: REFERENCE section 5). Simplified: least recently used goes first (the real
 * L1s replace pseudo-randomly), every miss fills L1 and L2 (the real L2 takes data only when L1 evicts it), no
 * prefetching, nobody else uses the L2, and sets are chosen by virtual addresses.
 *
 * What is read in turn and is a little larger than the cache misses always where the oldest goes first, and sometimes
 * where chance decides. Which of them the L2 of a BCM2837 is closer to is not known here, so a second L2 beside the
 * first replaces at random (the same chance in every run).
 */
#ifndef QUARL_CACHE_H
#define QUARL_CACHE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define LINE_SHIFT 6
#define MAX_LINES 8192 /* 512 KB / 64 bytes */

struct cache {
    uint64_t sets;              /* a power of two */
    unsigned ways;
    uint64_t lines[MAX_LINES];  /* set by set, the one used last first; line number + 1, so that 0 is empty */
};

static inline void cache_init(struct cache *cache, uint64_t bytes, unsigned ways)
{
    cache->ways = ways;
    cache->sets = bytes / ((uint64_t)ways << LINE_SHIFT);
    memset(cache->lines, 0, sizeof cache->lines);
}

static inline void cache_empty(struct cache *cache)
{
    memset(cache->lines, 0, sizeof cache->lines);
}

/* Use a line; whether it was there. */
static inline bool cache_use(struct cache *cache, uint64_t line)
{
    uint64_t *set = cache->lines + (line & (cache->sets - 1)) * cache->ways;
    const uint64_t wanted = line + 1;
    if (set[0] == wanted)
        return true;
    unsigned way = 1;
    while (way < cache->ways && set[way] != wanted)
        way++;
    const bool hit = way < cache->ways;
    memmove(set + 1, set, (hit ? way : cache->ways - 1) * sizeof *set); /* the last of a full set falls out */
    set[0] = wanted;
    return hit;
}

/* The same where chance decides which line of a full set goes. */
static inline bool cache_use_random(struct cache *cache, uint64_t line, uint64_t *chance)
{
    uint64_t *set = cache->lines + (line & (cache->sets - 1)) * cache->ways;
    unsigned way = 0;
    while (way < cache->ways && set[way] != line + 1 && set[way] != 0)
        way++;
    if (way < cache->ways && set[way] != 0)
        return true;
    if (way == cache->ways) {
        *chance ^= *chance << 13; /* Marsaglia, "Xorshift RNGs", 2003 */
        *chance ^= *chance >> 7;
        *chance ^= *chance << 17;
        way = (unsigned)(*chance % cache->ways);
    }
    set[way] = line + 1;
    return false;
}

struct core {
    struct cache l1i, l1d, l2, l2_random;
    uint64_t chance;
    uint64_t l1i_misses, l1d_misses, l2_instruction_misses, l2_data_misses, l2_random_misses;
};

static inline void core_init(struct core *core)
{
    cache_init(&core->l1i, 32 << 10, 2);
    cache_init(&core->l1d, 32 << 10, 4);
    cache_init(&core->l2, 512 << 10, 16);
    cache_init(&core->l2_random, 512 << 10, 16);
    core->chance = 88172645463325252u;
    core->l1i_misses = core->l1d_misses = 0;
    core->l2_instruction_misses = core->l2_data_misses = core->l2_random_misses = 0;
}

static inline void core_empty(struct core *core)
{
    cache_empty(&core->l1i);
    cache_empty(&core->l1d);
    cache_empty(&core->l2);
    cache_empty(&core->l2_random);
}

static inline void core_fetch(struct core *core, uint64_t address)
{
    const uint64_t line = address >> LINE_SHIFT;
    if (!cache_use(&core->l1i, line)) {
        core->l1i_misses++;
        core->l2_instruction_misses += !cache_use(&core->l2, line);
        core->l2_random_misses += !cache_use_random(&core->l2_random, line, &core->chance);
    }
}

/* A load or a store of one byte or more; an access across a line's end uses both lines. */
static inline void core_access(struct core *core, uint64_t address, uint64_t bytes)
{
    const uint64_t last = (address + bytes - 1) >> LINE_SHIFT;
    for (uint64_t line = address >> LINE_SHIFT; line <= last; line++)
        if (!cache_use(&core->l1d, line)) {
            core->l1d_misses++;
            core->l2_data_misses += !cache_use(&core->l2, line);
            core->l2_random_misses += !cache_use_random(&core->l2_random, line, &core->chance);
        }
}

#endif
