/* What the agent reads: one file, made on the host of a verified bundle (device/deploy/static_agent/packing.py). Little endian; a
 * table of sections, each at a multiple of 64 bytes. */
#ifndef AGENT_PACK_H
#define AGENT_PACK_H
#include <stddef.h>
#include <stdint.h>

enum section {
    ARTIFACT,                       /* the native engine's */
    SHA256,                         /* of the artifact, 32 bytes */
    NUMBERS,                        /* struct numbers */
    PRECISION, POLICY,              /* words without quotes */
    LOADED, BUNDLE, HELP,           /* JSON texts of replies: LOADED and bundle of the protocol, and all of help */
    WANTED,                         /* what an observation is, in words */
    FIELDS,                         /* a line for each field of the observation: its size, a blank, its name */
    OBSERVATIONS,                   /* golden, float[rows][observation] */
    OUTPUTS, TOLERANCE,             /* of the reference, float[rows][outputs] */
    DECISIONS,                      /* of the float policy: int32[rows], or float[rows][outputs] of a continuous one */
    STEPS,                          /* of each output's scale, float[outputs] */
    LINES,                          /* requests to time: act lines of golden observations */
    PERIOD,                         /* of control, uint64, ns */
    FALLBACK_ACTION,                /* the policy's own, float[outputs], or of a discrete policy its index; empty: none */
    BOUNDS,                         /* of a continuous policy's action, double[2][outputs]: low, high; empty: none */
    SECTIONS
};

struct numbers { uint32_t rows, observation, outputs, discrete, lines; };
struct pack {
    char magic[8];                  /* "QPAGENT", 0 */
    uint32_t version, bytes;
    struct { uint32_t offset, size; } section[SECTIONS];
};

static const void *section_of(const struct pack *p, enum section which) { return (const char *)p + p->section[which].offset; }

/* Why a file is no pack; NULL where it is one. */
static const char *wrong_pack(const struct pack *p, size_t bytes)
{
    if (!p || bytes < sizeof *p || __builtin_memcmp(p->magic, "QPAGENT", 8)) return "it is no policy.pack";
    if (p->version != 2) return "it is of another version";
    if (p->bytes != bytes) return "it is not whole";
    for (int i = 0; i < SECTIONS; i++)
        if (p->section[i].offset % 64 || p->section[i].offset > bytes || p->section[i].size > bytes - p->section[i].offset) return "a section lies outside";
    const struct numbers *n = section_of(p, NUMBERS);
    if (p->section[NUMBERS].size != sizeof *n || p->section[SHA256].size != 32) return "its numbers are not whole";
    if (!n->rows || n->rows > 1 << 20 || !n->observation || n->observation > 1 << 20 || !n->outputs || n->outputs > 1 << 16 || !n->lines) return "its sizes are out of range";
    const uint64_t inputs = 4ull * n->rows * n->observation, outputs = 4ull * n->rows * n->outputs;
    if (p->section[OBSERVATIONS].size != inputs || p->section[OUTPUTS].size != outputs || p->section[TOLERANCE].size != outputs) return "its golden vectors are not whole";
    if (p->section[DECISIONS].size != (n->discrete ? 4ull * n->rows : outputs) || p->section[STEPS].size != 4ull * n->outputs) return "its golden vectors are not whole";
    const uint32_t fallback = p->section[FALLBACK_ACTION].size, bounds = p->section[BOUNDS].size;
    if (p->section[PERIOD].size != 8 || (bounds && bounds != 16ull * n->outputs)) return "its bounds are not whole";
    if (fallback && fallback != 4ull * (n->discrete ? 1 : n->outputs)) return "its fallback is not whole";
    return 0;
}
#endif
