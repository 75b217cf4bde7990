#include <string.h>

#include "internal.h"

int fall_back(struct decider *d, int flags)
{
    d->decided.action = d->fallback_action, d->decided.values = d->fallback;
    return d->flags = flags | FALLBACK;
}

/* The action that was sent before, once more. */
int hold(struct decider *d, int flags)
{
    d->decided.values = 0;
    return d->flags = flags | HELD;
}

/* Remember an observation frame of this many bytes, unless it is none of this policy's; whether it is. The next
 * decision is made from it; its memory may not be written to before that. */
int take(struct decider *d, const struct frame *in, size_t bytes)
{
    const struct loop_policy *p = d->policy;
    const struct header *h = &in->head;
    if (h->magic != MAGIC || h->kind != KIND_OBSERVATION || bytes != frame_bytes(h->count)) return 0;
    const int is_whole = h->count == p->observation_size && !p->state_size; /* a state is never sent */
    if (!is_whole && h->count != p->period_size) return 0;
    d->values = in->values, d->sequence = h->sequence, d->observed_ns = h->observed_ns;
    d->is_period = !is_whole || p->period_size == p->observation_size, d->is_fresh = 1;
    if (d->is_period && h->flags & START) d->starts = 1;
    d->taken_flags = h->release && h->release != d->release ? WRONG_RELEASE : 0;
    return 1;
}

static int run_policy(struct decider *d, const float *values, int is_period, int starts)
{
    const struct loop_policy *p = d->policy;
    const int64_t begin = now_ns();
    d->decided.action = CONTINUOUS;
    const int flags = p->decide(p->context, values, is_period, starts, d->outputs, &d->decided.action);
    d->runtime_ns = now_ns() - begin;
    if (flags < 0) d->has_failed = 1;
    return flags;
}

/* Decide from the newest observation, or fall back; the flags. */
int decide(struct decider *d, int64_t now)
{
    const struct loop_policy *p = d->policy;
    const int remembers = d->is_period && p->period_size != p->observation_size;
    int flags = d->taken_flags;
    d->runtime_ns = 0;
    /* Without overflow, whatever time a frame names. */
    const int64_t oldest = now - d->stale_ns;
    if (!d->observed_ns || d->observed_ns > now || d->observed_ns < oldest) flags |= STALE;
    if (!are_finite(d->values, d->is_period ? p->period_size : p->observation_size)) flags |= NON_FINITE;
    if (flags) return fall_back(d, flags);
    if (remembers && !d->is_fresh) return hold(d, 0); /* what was remembered once is not remembered again */
    flags = run_policy(d, d->values, remembers, d->starts);
    d->is_fresh = 0;
    if (remembers) d->starts = 0;
    if (flags < 0 || flags & NON_FINITE || !are_finite(d->outputs, p->output_size)) return fall_back(d, NON_FINITE);
    d->decided.values = d->outputs;
    return d->flags = flags;
}

/* Decide on a golden observation, for nobody: a loop without a controller shows how punctual it would be. */
int rehearse(struct decider *d)
{
    run_policy(d, d->policy->golden, 0, 0);
    return fall_back(d, 0);
}

/* Write the frame; its action is the one that is held, from now on. */
void finish(struct decider *d, int64_t sent_ns, int64_t missed)
{
    struct header *h = &d->frame->head;
    const uint32_t count = d->policy->output_size;
    if (d->decided.values) {
        h->action = d->decided.action;
        memcpy(d->frame->values, d->decided.values, 4 * (size_t)count);
    }
    h->magic = MAGIC, h->kind = KIND_ACTION, h->flags = (uint8_t)d->flags, h->count = (uint16_t)count;
    h->sequence = d->sequence, h->release = d->release, h->observed_ns = d->observed_ns, h->sent_ns = sent_ns;
    h->missed = (uint32_t)missed;
}

int loop_decide_native(void *context, const float *values, int is_period, int starts, float *outputs, int32_t *action)
{
    const struct loop_engine *e = context;
    (void)is_period, (void)starts;
    const int choice = e->decide(e->engine, values, outputs);
    if (e->is_discrete) *action = e->first + choice;
    return e->has_moved(e->engine, values) ? UNTRAINED : 0;
}
