/* The binary frames between a robot's program and the loop, as device/agent/loop/frames.py describes them. */
#ifndef AGENT_LOOP_FRAMES_H
#define AGENT_LOOP_FRAMES_H
#include <stddef.h>
#include "constants.h"

enum { MOST_VALUES = (LARGEST_FRAME - (int)sizeof(struct header)) / 4 };
_Static_assert(sizeof(struct header) == 48 && sizeof(struct description) == 72, "a frame has no gaps");

/* A release's name as a frame carries it, 0007-1a2b3c4d as 0x000000071a2b3c4d; 0 for what is no release's name. */
static uint64_t release_number(const char *name)
{
    uint32_t number = 0, digest = 0;
    const char *s = name;
    for (; *s >= '0' && *s <= '9'; s++) number = 10 * number + (uint32_t)(*s - '0');
    if (s == name || *s++ != '-') return 0;
    for (int i = 0; i < 8; i++, s++) {
        if (!((*s >= '0' && *s <= '9') || (*s >= 'a' && *s <= 'f'))) return 0;
        digest = digest << 4 | (uint32_t)(*s <= '9' ? *s - '0' : *s - 'a' + 10);
    }
    return *s ? 0 : (uint64_t)number << 32 | digest;
}
#endif
