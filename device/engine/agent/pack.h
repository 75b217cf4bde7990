/* What the agent reads: one file, made on the host of a verified bundle (device/deploy/static_agent/packing.py). Little
 * endian; a table of sections, each at a multiple of 64 bytes. */
#ifndef AGENT_PACK_H
#define AGENT_PACK_H
#include <stddef.h>
#include <stdint.h>

#include "text.h"

enum section {
    ARTIFACT,                       /* the native engine's */
    SHA256,                         /* of the artifact, 32 bytes */
    NUMBERS,                        /* struct numbers */
    PRECISION, POLICY,              /* text without quotes */
    LOADED, BUNDLE, HELP,           /* JSON of replies: LOADED and bundle of the protocol, and the members of help */
    WANTED,                         /* what an observation is, in words */
    FIELDS,                         /* a line for each field of the observation: its size, a blank, its name */
    OBSERVATIONS,                   /* golden, float[rows][observation] */
    OUTPUTS, TOLERANCE,             /* of the reference, float[rows][outputs] */
    DECISIONS,                      /* of the float policy: int32[rows][choices], indices, or float[rows][outputs] */
    STEPS,                          /* of each output's scale, float[outputs]; of floats 0 */
    LINES,                          /* requests to time: act lines of golden observations */
    PERIOD,                         /* of control, uint64, ns */
    FALLBACK_ACTION,                /* the policy's own: float[outputs], or float[choices], numbers; or empty */
    BOUNDS,                         /* of a continuous policy's action, double[2][outputs]: low, high; empty: none */
    CHOICES,                        /* struct choice[choices] */
    SECTIONS
};

/* choices: how many actions are chosen, each by the largest of its outputs; 0: the outputs are the action. */
struct numbers { uint32_t rows, observation, outputs, choices, lines; };
/* The next `count` outputs are compared; the actions' numbers begin at `start`. */
struct choice { int32_t count, start; };
struct pack {
    char magic[8];                  /* "QPAGENT", 0 */
    uint32_t version, bytes;
    struct { uint32_t offset, size; } section[SECTIONS];
};

extern const struct pack *pack;     /* the one that is served, and its numbers */
extern const struct numbers *sizes;

/* Map a file as the pack that is served; NULL, or why it is none. */
const char *open_pack(const char *path);
const void *section_of(enum section);
size_t section_size(enum section);
void put_section(struct text *, enum section);
/* A section's text with a 0 behind it. Allocated. */
char *copy_section(enum section);
#endif
