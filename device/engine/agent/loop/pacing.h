/* The loop itself: absolute deadlines, one decision for each, and what is done when one is missed. As
 * device/agent/loop/pacing.py: by the clock, tick k is due at start + k * period, and ticks that pass unserved are
 * skipped; by observations, each is answered as it comes, and a period without one brings the fallback. */
#ifndef AGENT_LOOP_PACING_H
#define AGENT_LOOP_PACING_H
#include "connections.h"
#include "notifying.h"
#include "options.h"
#include "punctuality.h"

struct timing { int64_t period_ns, deadline_ns, stale_ns, hold_ns, spin_ns; int pace, on_miss; };

struct loop {
    struct timing timing;
    struct decider *decider;
    struct connections *connections;
    struct notifier *notifier;
    struct punctuality count;
    /* One JSON request to one reply. */
    struct text (*answer)(char *begin, char *end);
    long timer;
    int64_t sent_ns, alive_ns, made_ns; /* made_ns: the action that would be held */
    int has_skipped, has_ended, is_missed; /* is_missed: it ended for --on-miss stop */
    char why[96];                   /* it ended */
};

static void end_loop(struct loop *l, int64_t ticks, const char *why)
{
    struct text t = {l->why, l->why, l->why + sizeof l->why - 1};
    if (ticks) put_signed(&t, ticks), put_char(&t, ' ');
    put(&t, why), *t.at = 0;
    l->has_ended = 1;
}

static void end_by_signal(struct loop *l)
{
    if (!l->has_ended && has_ended_by_signal(l->connections)) end_loop(l, 0, "a signal");
}

static int end_by_miss(struct loop *l, int64_t ticks, const char *why)
{
    end_loop(l, ticks, why);
    return l->is_missed = 1;
}

static int was_late(struct loop *l, int flags, int64_t made_ns)
{
    count_missed(&l->count, 1, 0);
    if (l->timing.on_miss == ON_MISS_HOLD) {
        if (made_ns - l->made_ns <= l->timing.hold_ns) return hold(l->decider, flags);
        l->count.hold_expired += l->connections->controller != NOBODY;
    }
    if (l->timing.on_miss == ON_MISS_STOP) end_by_miss(l, 0, "an action was ready after its deadline (--on-miss stop)");
    return fall_back(l->decider, flags);
}

static int send_action(struct loop *l)
{
    struct connections *c = l->connections;
    const size_t bytes = frame_bytes(l->decider->output_size);
    return c->controller != NOBODY && send_to(c, c->controller, &l->decider->frame, bytes);
}

/* Decide and send: one action for the tick that was due; without a controller, a rehearsal. */
static void act_once(struct loop *l, int64_t read_ns, int64_t due_ns)
{
    struct decider *d = l->decider;
    struct punctuality *p = &l->count;
    const int is_controlled = l->connections->controller != NOBODY;
    int flags = is_controlled ? decide(d, read_ns) : rehearse(d);
    if (l->has_skipped) flags = d->flags |= MISSED, l->has_skipped = 0;
    const int64_t made = (int64_t)now_ns();
    if (made - due_ns > l->timing.deadline_ns) flags = was_late(l, flags | MISSED, made);
    else l->made_ns = made;
    finish(d, made, p->missed_ever);
    const int sent = send_action(l);
    const int64_t written = (int64_t)now_ns();
    /* Counted after the action has left. */
    if (is_controlled) p->flags[flags & 255]++;
    add_duration(&p->time[TIME_DECIDED], made - read_ns);
    if (d->runtime_ns) add_duration(&p->time[TIME_RUNTIME], d->runtime_ns);
    if (sent) {
        int64_t age;
        add_duration(&p->time[TIME_ANSWERED], written - read_ns);
        add_duration(&p->time[TIME_SENT_LATE], written - due_ns);
        if (__builtin_sub_overflow(written, d->observed_ns, &age)) age = INT64_MAX;
        if (d->observed_ns) add_duration(&p->time[TIME_AGE], age);
        const int64_t off = written - l->sent_ns - l->timing.period_ns;
        if (l->sent_ns) add_duration(&p->time[TIME_JITTER], off < 0 ? -off : off);
    }
    l->sent_ns = sent ? written : 0;
}

/* Count ticks that passed unserved; the next action says so, on time as it may be itself. */
static void skip(struct loop *l, int64_t ticks)
{
    count_missed(&l->count, 0, ticks);
    l->has_skipped = 1;
    if (l->timing.on_miss != ON_MISS_STOP || l->has_ended) return;
    end_by_miss(l, ticks, "ticks passed unserved (--on-miss stop)");
    fall_back(l->decider, MISSED);
    finish(l->decider, (int64_t)now_ns(), l->count.missed_ever);
    send_action(l);
}

/* What may wait: one JSON request, the heartbeat. */
static void attend(struct loop *l, int64_t now)
{
    struct connections *c = l->connections;
    if (c->waiting) {
        const int place = c->order[0], who = c->request[place].client;
        const struct text reply = l->answer(c->text[place], c->text[place] + c->request[place].size);
        forget_request(c, 0);
        send_to(c, who, reply.begin, (size_t)(reply.at - reply.begin));
    }
    if (now - l->alive_ns >= l->notifier->heartbeat_ns) {
        l->alive_ns = now;
        notify(l->notifier, "WATCHDOG=1", 0);
    }
}

/* Sleep until that time, or until a signal ends the loop. */
static void sleep_until(struct loop *l, int64_t due_ns)
{
    struct pollfd files[2] = {{(int32_t)l->timer, POLLIN, 0}, {(int32_t)l->connections->signals, POLLIN, 0}};
    set_timer(l->timer, due_ns);
    do wait_for(files, 2, -1); while (!files[0].found && !files[1].found);
    if (files[1].found) end_by_signal(l);
}

static void turn_by_clock(struct loop *l)
{
    const int64_t period = l->timing.period_ns;
    int64_t due = (int64_t)now_ns() + period, now;
    for (;;) {
        sleep_until(l, due - l->timing.spin_ns);
        if (l->has_ended) return;
        while ((now = (int64_t)now_ns()) < due) {}
        add_duration(&l->count.time[TIME_WOKE_LATE], now - due);
        l->count.ticks++;
        read_all(l->connections);
        act_once(l, (int64_t)now_ns(), due);
        attend(l, now);
        const int64_t behind = ((int64_t)now_ns() - due) / period; /* ticks that were due meanwhile, besides the next */
        if (behind > 0) skip(l, behind);
        if (l->has_ended) return;
        due += (behind + 1) * period;
    }
}

/* Read one packet of each who is ready; each observation is answered at once. Whether there was one. */
static int read_ready(struct loop *l, const struct pollfd files[WAITED])
{
    int answered = 0;
    if (files[WAITED_SIGNALS].found) end_by_signal(l);
    for (int i = 0; i < MOST_CONNECTIONS; i++) {
        if (!files[WAITED_CLIENTS + i].found || read_one(l->connections, i) != 1) continue;
        const int64_t now = (int64_t)now_ns();
        l->count.ticks++, answered = 1;
        act_once(l, now, now);
    }
    if (files[WAITED_LISTENER].found) while (accept_one(l->connections) != NOBODY) {}
    return answered;
}

static void turn_by_observation(struct loop *l)
{
    struct pollfd files[WAITED];
    struct connections *c = l->connections;
    int64_t due = (int64_t)now_ns() + l->timing.period_ns;
    while (!l->has_ended) {
        long found = wait_for_packets(c, files, 0);
        if (!found) {
            const int64_t until = (int64_t)now_ns() + l->timing.spin_ns;
            while (!found && (int64_t)now_ns() < until) found = wait_for_packets(c, files, 0);
            const int64_t left = due - (int64_t)now_ns(), most = l->notifier->heartbeat_ns;
            if (!found && !c->waiting && left > 0) found = wait_for_packets(c, files, left < most ? left : most);
        }
        if (found && read_ready(l, files)) due = (int64_t)now_ns() + l->timing.period_ns;
        const int64_t now = (int64_t)now_ns();
        if (now >= due && !l->has_ended) {
            l->count.ticks++;
            act_once(l, now, now);
            due = now + l->timing.period_ns;
        }
        attend(l, now);
    }
}

/* Turn until a signal, or --on-miss stop, ends it. */
static void turn(struct loop *l)
{
    reset_punctuality(&l->count);
    if (l->timing.pace == PACE_CLOCK) turn_by_clock(l);
    else turn_by_observation(l);
}
#endif
