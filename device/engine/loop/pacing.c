/* By the clock, tick k is due at start + k * period: the loop sleeps until then, reads what the controller has sent,
 * decides from the newest observation and sends the action. Ticks that pass unserved are skipped: never two
 * decisions for one tick, never a decision for one that has passed. By observations, each is answered as it comes,
 * and a period without one brings the fallback. Everybody but the controller gets what is left of a period, and
 * nothing else. */
#include <sys/timerfd.h>
#include <unistd.h>

#include "internal.h"

/* What a greeting may take; how long before a tick others are left alone. */
enum { GREETING_COST_NS = 100000, MARGIN_NS = 200000, ACCEPTED_AT_ONCE = 4 };
#define SECOND_NS 1000000000ll
#define RETRY_NS 10000000ll         /* a request that found no time is tried again after */
#define FREE_NS 2000000ll           /* given to others where nothing is to be lost */

static void end_loop(struct loop *l, int64_t ticks, const char *why)
{
    struct text t = text_of(l->why, sizeof l->why - 1);
    if (ticks) print(&t, "%lld ", (long long)ticks);
    put(&t, why), *t.at = 0;
    l->has_ended = 1;
}

static void end_by_miss(struct loop *l, int64_t ticks, const char *why)
{
    end_loop(l, ticks, why);
    l->is_missed = 1;
}

static void end_by_signal(struct loop *l)
{
    uint64_t count;
    if (!l->has_ended && read(l->connections.signals, &count, sizeof count) == sizeof count) end_loop(l, 0, "a signal");
}

static int was_late(struct loop *l, int flags, int64_t made_ns)
{
    count_missed(&l->count, 1, 0);
    l->missed_ns = made_ns;
    if (l->timing.on_miss == ON_MISS_HOLD) {
        if (made_ns - l->made_ns <= l->timing.hold_ns) return hold(&l->decider, flags);
        l->count.hold_expired += l->connections.controller != NOBODY;
    }
    if (l->timing.on_miss == ON_MISS_STOP) end_by_miss(l, 0, "an action was ready after its deadline (--on-miss stop)");
    return fall_back(&l->decider, flags);
}

static int send_action(struct loop *l)
{
    struct connections *c = &l->connections;
    return c->controller != NOBODY
           && send_to(c, c->controller, l->decider.frame, frame_bytes(l->policy->output_size));
}

/* Decide and send: one action for the tick that was due; without a controller, a rehearsal. */
static void act_once(struct loop *l, int64_t read_ns, int64_t due_ns)
{
    struct decider *d = &l->decider;
    struct punctuality *p = &l->count;
    const int is_controlled = l->connections.controller != NOBODY;
    int flags = is_controlled ? decide(d, read_ns) : rehearse(d);
    if (d->has_failed && !l->has_ended) end_loop(l, 0, "the policy could not be executed");
    if (l->has_skipped) flags = d->flags |= MISSED, l->has_skipped = 0;
    const int64_t made = now_ns();
    if (made - due_ns > l->timing.deadline_ns) flags = was_late(l, flags | MISSED, made);
    else if (!(flags & HELD)) l->made_ns = made; /* a policy that remembers is on time with a repeated action, too */
    finish(d, made, p->missed_ever);
    const int is_sent = send_action(l);
    const int64_t written = now_ns();
    /* Counted after the action has left. */
    if (is_controlled) p->flags[flags & 255]++;
    add_duration(&p->time[TIME_DECIDED], made - read_ns);
    if (d->runtime_ns) add_duration(&p->time[TIME_RUNTIME], d->runtime_ns);
    if (is_sent) {
        int64_t age;
        add_duration(&p->time[TIME_ANSWERED], written - read_ns);
        add_duration(&p->time[TIME_SENT_LATE], written - due_ns);
        if (__builtin_sub_overflow(written, d->observed_ns, &age)) age = INT64_MAX;
        if (d->observed_ns) add_duration(&p->time[TIME_AGE], age);
        const int64_t off = written - l->sent_ns - l->timing.period_ns;
        if (l->sent_ns) add_duration(&p->time[TIME_JITTER], off < 0 ? -off : off);
    }
    l->sent_ns = is_sent ? written : 0;
}

/* Count ticks that passed unserved; the next action says so, on time as it may be itself. */
static void skip(struct loop *l, int64_t ticks)
{
    count_missed(&l->count, 0, ticks);
    l->has_skipped = 1, l->missed_ns = now_ns();
    if (l->timing.on_miss != ON_MISS_STOP || l->has_ended) return;
    end_by_miss(l, ticks, "ticks passed unserved (--on-miss stop)");
    fall_back(&l->decider, MISSED);
    finish(&l->decider, now_ns(), l->count.missed_ever);
    send_action(l);
}

/* ---- everybody but the controller -------------------------------------------------------------------------------- */

/* Until when others may take the loop's time, where the next action is due then. */
static int64_t slack_end(struct loop *l, int64_t due, int64_t now)
{
    const int64_t tenth = l->timing.period_ns / 10, margin = tenth < MARGIN_NS ? tenth : MARGIN_NS;
    int64_t until = due - margin;
    /* An observation may come at any time: not for long at once. */
    const int64_t quarter = now + l->timing.period_ns / 4;
    if (l->timing.pace == PACE_OBSERVATION && until > quarter) until = quarter;
    /* Nobody waits for an action; or deadlines are missed anyway, and somebody may want to know that: once a second. */
    if (l->connections.controller == NOBODY && until < now + GREETING_COST_NS) until = now + GREETING_COST_NS;
    const int64_t own = l->forced_ns + FREE_NS + l->timing.period_ns; /* until then misses may come of that very time */
    if (l->missed_ns > own && now - l->missed_ns < SECOND_NS && now - l->forced_ns > SECOND_NS) l->forced_ns = now;
    return until < l->forced_ns + FREE_NS ? l->forced_ns + FREE_NS : until;
}

static void read_others(struct connections *c, int64_t until)
{
    for (int turn = 0; turn < PLACES; turn++) {
        const int who = (c->next + turn) % PLACES;
        for (int left = MOST_OF_OTHERS; left; left--) {
            if (c->client[who].file == NOBODY || c->client[who].size || who == c->controller) break;
            if (now_ns() + STEP_NS > until || read_one(c, who) < 0) break;
        }
    }
}

/* What may wait: the heartbeat, new connections, packets and requests of all but the controller. */
static void attend(struct loop *l, int64_t now, int64_t due)
{
    struct connections *c = &l->connections;
    if (now - l->alive_ns >= l->supervisor.heartbeat_ns) {
        l->alive_ns = now;
        notify(&l->supervisor, "WATCHDOG=1", 0);
    }
    now = now_ns();
    const int64_t until = slack_end(l, due, now);
    for (int left = ACCEPTED_AT_ONCE; left && now_ns() + STEP_NS <= until && accept_one(c); left--) {}
    read_others(c, until);
    cut_silent(c, now);
    answer_waiting(l, until);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static struct pollfd to_read(int file) { return (struct pollfd){file, POLLIN, 0}; }

/* Sleep until that time, or until a signal ends the loop. */
static void sleep_until(struct loop *l, int64_t due_ns)
{
    struct pollfd files[] = {to_read(l->timer), to_read(l->connections.signals)};
    const int64_t due = due_ns < 1 ? 1 : due_ns;
    const struct itimerspec setting = {.it_value = {(time_t)(due / SECOND_NS), (long)(due % SECOND_NS)}};
    timerfd_settime(l->timer, TFD_TIMER_ABSTIME, &setting, 0);
    while (poll(files, 2, -1) < 0) {} /* EINTR */
    if (files[1].revents) end_by_signal(l);
}

static void run_by_clock(struct loop *l)
{
    const int64_t period = l->timing.period_ns;
    int64_t due = now_ns() + period, now;
    for (;;) {
        sleep_until(l, due - l->timing.spin_ns);
        if (l->has_ended) return;
        while ((now = now_ns()) < due) {}
        add_duration(&l->count.time[TIME_WOKE_LATE], now - due);
        l->count.ticks++;
        read_controller(&l->connections);
        act_once(l, now_ns(), due);
        attend(l, now, due + period);
        const int64_t behind = (now_ns() - due) / period; /* ticks that were due meanwhile, besides the next */
        if (behind > 0) skip(l, behind);
        if (l->has_ended) return;
        due += (behind + 1) * period;
    }
}

/* Wait for a packet of the controller or a signal, and where others have time for one of theirs, too; whether one of
 * them is there. */
static int wait_for_packets(struct loop *l, int64_t due, int64_t timeout_ns)
{
    struct connections *c = &l->connections;
    struct pollfd files[PLACES + 2] = {to_read(c->signals), to_read(c->listener)};
    const int64_t now = now_ns();
    const int is_open = slack_end(l, due, now) > now + STEP_NS;
    if (!is_open || !has_place(c)) files[1].fd = NOBODY;
    for (int i = 0; i < PLACES; i++) { /* a negative file is not waited for */
        const int is_heard = i == c->controller || (is_open && !c->client[i].size);
        files[2 + i] = to_read(is_heard ? c->client[i].file : NOBODY);
    }
    const struct timespec limit = {(time_t)(timeout_ns / SECOND_NS), (long)(timeout_ns % SECOND_NS)};
    const int found = ppoll(files, PLACES + 2, &limit, 0);
    if (found > 0 && files[0].revents) end_by_signal(l);
    return found > 0;
}

static int is_waiting(const struct connections *c)
{
    for (int i = 0; i < PLACES; i++) if (c->client[i].file != NOBODY && c->client[i].size) return 1;
    return 0;
}

static void run_by_observation(struct loop *l)
{
    struct connections *c = &l->connections;
    int64_t due = now_ns() + l->timing.period_ns;
    while (!l->has_ended) {
        int is_found = wait_for_packets(l, due, 0);
        const int64_t spun = now_ns() + l->timing.spin_ns, end = spun < due ? spun : due;
        while (!is_found && now_ns() < end) is_found = wait_for_packets(l, due, 0);
        const int64_t left = due - now_ns(), most = is_waiting(c) ? RETRY_NS : l->supervisor.heartbeat_ns;
        if (!is_found && left > 0) wait_for_packets(l, due, left < most ? left : most);
        int64_t now = now_ns();
        if (!l->has_ended && c->controller != NOBODY && read_one(c, c->controller) == 1) {
            now = now_ns();
            l->count.ticks++;
            act_once(l, now, now);
            due = now_ns() + l->timing.period_ns;
        } else if (now >= due && !l->has_ended) {
            l->count.ticks++;
            act_once(l, now, now);
            due = now + l->timing.period_ns;
        }
        attend(l, now, due);
    }
}

void run_loop(struct loop *l)
{
    reset_punctuality(&l->count);
    if (l->timing.pace == PACE_CLOCK) run_by_clock(l);
    else run_by_observation(l);
}
