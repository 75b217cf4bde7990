/* From the newest observation frame to an action frame, or to the fallback where no decision can be made. */
#ifndef AGENT_LOOP_DECIDING_H
#define AGENT_LOOP_DECIDING_H
#include "../../engine.h"
#include "../system.h"
#include "frames.h"

struct action_frame { struct header head; float values[MOST_VALUES]; };
/* Room for one packet; a byte more than an observation has, so that a longer packet is seen to be one. */
struct inbox { _Alignas(64) struct header head; float values[MOST_VALUES]; char more[64]; };

struct decider {
    struct native *engine;
    uint32_t observation_size, output_size;
    int discrete;
    uint64_t release;               /* as frames carry it */
    int64_t stale_ns;               /* age from which an observation is stale */
    const float *golden, *values;   /* to rehearse on; the newest observation */
    uint64_t sequence;              /* of the newest observation, and when it was made: 0 before the first */
    int64_t observed_ns, runtime_ns; /* the runtime's last call; 0 where the last decision was made without it */
    int64_t decisions;
    int taken_flags, flags;
    struct { int32_t action; const float *values; } decided; /* no values: what the frame has, once more */
    int32_t fallback_action;
    float fallback[MOST_VALUES], outputs[MOST_VALUES];
    struct action_frame frame;      /* whole after finish() */
};

static size_t frame_bytes(uint32_t count) { return sizeof(struct header) + 4 * (size_t)count; }

static int are_finite(const float *x, uint32_t n)
{
    uint32_t most = 0;              /* the largest exponent; that of NaN and infinity is all ones */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        __builtin_memcpy(&bits, x + i, 4);
        bits &= 0x7f800000;
        most = bits > most ? bits : most;
    }
    return most < 0x7f800000;
}

static int fall_back(struct decider *d, int flags)
{
    d->decided.action = d->fallback_action, d->decided.values = d->fallback;
    return d->flags = flags | FALLBACK;
}

/* The action that was sent before, once more. */
static int hold(struct decider *d, int flags)
{
    d->decided.values = 0;
    return d->flags = flags | HELD;
}

/* Remember an observation frame of so many bytes, unless it is none of this policy's. The next decision is made from
 * it; the inbox may not be written to before that. */
static int take(struct decider *d, const struct inbox *in, size_t size)
{
    const struct header *h = &in->head;
    if (h->magic != MAGIC || h->kind != KIND_OBSERVATION) return 0;
    if (h->count != d->observation_size || size != frame_bytes(h->count)) return 0;
    d->values = in->values, d->sequence = h->sequence, d->observed_ns = h->observed_ns;
    d->taken_flags = h->release && h->release != d->release ? WRONG_RELEASE : 0;
    return 1;
}

static int run_policy(struct decider *d, const float *values)
{
    const uint64_t begin = now_ns();
    const int action = native_decide(d->engine, values, d->outputs);
    d->runtime_ns = (int64_t)(now_ns() - begin);
    return action;
}

/* Decide from the newest observation, or fall back; the flags. */
static int decide(struct decider *d, int64_t now)
{
    int flags = d->taken_flags;
    d->runtime_ns = 0;
    /* Without overflow, whatever time a frame names. */
    const int64_t oldest = now - d->stale_ns;
    if (!d->observed_ns || d->observed_ns > now || d->observed_ns < oldest) flags |= STALE;
    if (!are_finite(d->values, d->observation_size)) flags |= NON_FINITE;
    if (flags) return fall_back(d, flags);
    const int action = run_policy(d, d->values);
    if (!are_finite(d->outputs, d->output_size)) return fall_back(d, NON_FINITE);
    d->decided.action = d->discrete ? action : CONTINUOUS, d->decided.values = d->outputs;
    d->decisions++;
    return d->flags = native_has_moved(d->engine, d->values) ? UNTRAINED : 0;
}

/* Decide on a golden observation, for nobody: a loop without a controller shows how punctual it would be. */
static int rehearse(struct decider *d)
{
    run_policy(d, d->golden);
    return fall_back(d, 0);
}

/* Write the frame; its action is the one that is held, from now on. */
static void finish(struct decider *d, int64_t sent_ns, int64_t missed)
{
    struct header *h = &d->frame.head;
    if (d->decided.values) {
        h->action = d->decided.action;
        __builtin_memcpy(d->frame.values, d->decided.values, 4 * (size_t)d->output_size);
    }
    h->magic = MAGIC, h->kind = KIND_ACTION, h->flags = (uint8_t)d->flags, h->count = (uint16_t)d->output_size;
    h->sequence = d->sequence, h->release = d->release, h->observed_ns = d->observed_ns, h->sent_ns = sent_ns;
    h->missed = (uint32_t)missed;
}
#endif
