/* Everything is prepared first, then the loop runs until it is ended. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "internal.h"

static int ending = NOBODY;         /* an eventfd: a signal has come */

static void note_signal(int number)
{
    const uint64_t one = 1;
    const int before = errno;
    (void)number;
    if (write(ending, &one, sizeof one) < 0) {}
    errno = before;
}

/* The signals that end a loop, as a file that can be read when one has come. A handler, because a runtime's threads may
 * receive them, too. */
static int open_signals(void)
{
    static const int NUMBERS[] = {SIGHUP, SIGINT, SIGTERM};
    const struct sigaction action = {.sa_handler = note_signal};
    ending = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    for (int i = 0; i < COUNT_OF(NUMBERS); i++) sigaction(NUMBERS[i], &action, 0);
    return ending;
}

int loop_refuse(const char *message, const char *next)
{
    fprintf(stderr, "error: %s%s%s\n", message, *next ? "\n" : "", next);
    return EXIT_REFUSED;
}

static int refuse_to_serve(const char *next)
{
    char message[1024];
    struct text t = text_of(message, sizeof message - 1);
    put_bytes(&t, fault.begin, text_size(&fault)), *t.at = 0;
    return loop_refuse(message, next);
}

/* A release's name as a frame carries it, 0007-1a2b3c4d as 0x000000071a2b3c4d; 0 for what is no release's name. */
static uint64_t release_number(const char *name)
{
    uint32_t number = 0, digest = 0;
    const char *s = name;
    for (; *s >= '0' && *s <= '9'; s++) number = 10 * number + (uint32_t)(*s - '0');
    if (s == name || *s++ != '-') return 0;
    for (int i = 0; i < 8; i++, s++) {
        if (hex_digit(*s) < 0 || (*s >= 'A' && *s <= 'F')) return 0;
        digest = digest << 4 | (uint32_t)hex_digit(*s);
    }
    return *s ? 0 : (uint64_t)number << 32 | digest;
}

static int is_fallback(const struct loop_policy *p, const double *given, uint32_t count, int is_own)
{
    if (count != (p->is_discrete ? 1 : p->output_size)) return 0;
    if (p->is_discrete)
        return given[0] >= p->first && given[0] < (double)p->first + p->output_size && given[0] == floor(given[0]);
    for (uint32_t i = 0; i < count; i++) {
        if (!isfinite((float)given[i]) || (p->are_whole && given[i] != floor(given[i]))) return 0;
        /* Of the policy's own, a float32, the bounds are such, too. */
        if (p->bounds && !is_own && (given[i] < p->bounds[i] || given[i] > p->bounds[count + i])) return 0;
    }
    return 1;
}

/* The fallback action: the one that is given, or else the policy's own; 0 where there is none that fits. */
static int choose_fallback(struct loop *l)
{
    struct decider *d = &l->decider;
    const struct loop_policy *p = l->policy;
    const char *const typed = l->options->fallback;
    const uint32_t room = p->output_size + 1;
    double *given = calloc(room, sizeof *given);
    uint32_t count = 0;
    begin_fault();
    if (typed) count = (uint32_t)read_numbers(typed, given, room);
    else if (p->fallback)
        for (; count < (p->is_discrete ? 1 : p->output_size); count++) given[count] = (double)p->fallback[count];
    if (!count) {
        print(&fault, "policy '%s' declares no fallback action, and a loop needs one: before the first observation, "
                      "and when one is stale or not finite.", p->name);
        return refuse_to_serve(p->is_discrete ? "Name it, for example: --fallback 0"
                                              : "Name it, for example: --fallback=0,0,0");
    }
    if (!is_fallback(p, given, count, !typed)) {
        put(&fault, "fallback is (");
        for (uint32_t i = 0; i < count && i < 8 && i < room; i++)
            put(&fault, i ? ", " : ""), put_double(&fault, given[i]);
        print(&fault, "%s; allowed are none, or ", count == 1 ? ",)" : count > 8 ? ", ...)" : ")");
        if (p->is_discrete)
            print(&fault, "the number of one of its %u actions, from %d on.", p->output_size, p->first);
        else print(&fault, "%u %s numbers%s.", p->output_size, p->are_whole ? "whole" : "finite",
                   p->bounds ? " within its bounds" : "");
        return refuse_to_serve("");
    }
    d->fallback_action = p->is_discrete ? (int32_t)given[0] : CONTINUOUS;
    for (uint32_t i = 0; i < p->output_size; i++) d->fallback[i] = p->is_discrete ? 0.0f : (float)given[i];
    free(given);
    return 0;
}

static int64_t milliseconds(double given, int64_t otherwise)
{
    return given > 0 ? (int64_t)(1e6 * given + 0.5) : otherwise;
}

static void choose_timing(struct loop *l)
{
    const struct loop_options *o = l->options;
    const int64_t period = o->rate > 0 ? (int64_t)(1e9 / o->rate + 0.5) : (int64_t)l->policy->period_ns;
    const int64_t halves = (int64_t)(2 * STALE_PERIODS) * period; /* a half is rounded to the even one */
    l->timing = (struct timing){
        .period_ns = period, .deadline_ns = milliseconds(o->deadline_ms, period),
        .stale_ns = milliseconds(o->stale_ms, halves / 2 + (halves & halves / 2 & 1)),
        .hold_ns = milliseconds(o->hold_for_ms, HOLD_PERIODS * period), .spin_ns = 1000ll * o->spin_us,
        .pace = o->pace, .on_miss = o->on_miss,
    };
}

static int check_policy(const struct loop_policy *p, const struct loop_options *o)
{
    const size_t largest = frame_bytes(p->observation_size > p->output_size ? p->observation_size : p->output_size);
    begin_fault();
    if (largest > LARGEST_FRAME) {
        print(&fault, "policy '%s' has frames of %zu bytes; a packet may have %d.", p->name, largest, LARGEST_FRAME);
        return refuse_to_serve("Use the agent's JSON lines: run-agent.");
    }
    if (o->rate > 0 || (p->period_ns >= MIN_PERIOD_NS && p->period_ns <= MAX_PERIOD_NS)) return 0;
    print(&fault, "policy '%s' has a control period of %llu ns; a loop takes %lld to %lld.", p->name,
          (unsigned long long)p->period_ns, (long long)MIN_PERIOD_NS, (long long)MAX_PERIOD_NS);
    return refuse_to_serve("Name another: --rate.");
}

static int prepare_decider(struct loop *l)
{
    struct decider *d = &l->decider;
    const struct loop_policy *p = l->policy;
    d->policy = p, d->values = p->golden, d->stale_ns = l->timing.stale_ns;
    d->release = release_number(l->options->release);
    d->fallback = calloc(p->output_size, sizeof(float)), d->outputs = calloc(p->output_size, sizeof(float));
    d->frame = calloc(1, frame_bytes(p->output_size));
    return choose_fallback(l);
}

static int prepare(struct loop *l, char *title)
{
    const struct loop_policy *p = l->policy;
    const struct loop_options *o = l->options;
    struct decider *d = &l->decider;
    int status = check_policy(p, o);
    if (status) return status;
    choose_timing(l);
    if ((status = prepare_decider(l))) return status;
    const int signals = open_signals(), listener = listen_at(o->socket);
    if (listener < 0) {
        if (listener == -EADDRINUSE) print(&fault, "another loop listens at %s.", o->socket);
        else print(&fault, "%s: %s.", o->socket, strerror(-listener));
        return refuse_to_serve(listener == -EADDRINUSE ? "Stop that one first, or name another --socket."
                                                       : "Name a --socket in a folder of yours.");
    }
    open_connections(&l->connections, listener, signals, d);
    l->connections.hello = (struct description){
        .head = {.magic = MAGIC, .kind = KIND_DESCRIPTION, .release = d->release, .action = CONTINUOUS},
        .period_ns = (uint64_t)l->timing.period_ns, .observation_size = p->observation_size,
        .output_size = p->output_size, .brought_size = p->period_size, .discrete = (uint32_t)p->is_discrete,
    };
    open_supervisor(&l->supervisor);
    l->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    l->reply = malloc(REPLY_ROOM);
    /* The first of everything is slow; what is sent first is what would be held. */
    for (int i = 0; i < 2; i++) rehearse(d), finish(d, 0, 0);
    rehearse_requests(l);
    request_real_time(&l->grants, o->priority, o->core, p->locks_all);
    snprintf(title, 1024, "%s %s %s, %g decisions a second, %s", p->name, *o->release ? o->release : "(no release)",
             p->served, 1e9 / (double)l->timing.period_ns, o->socket);
    return d->has_failed ? loop_refuse("the policy cannot be executed.", "Deploy it again.") : 0;
}

int loop_serve(const struct loop_policy *policy, const struct loop_options *options)
{
    static struct loop l;           /* one in a process */
    char title[1024];
    l = (struct loop){0};
    l.policy = policy, l.options = options;
    const int status = prepare(&l, title);
    if (status) return status;
    fprintf(stderr, "%s\n", title);
    for (int i = 0; i < l.grants.count; i++) {
        const struct grant *one = &l.grants.one[i];
        if (!one->is_granted) fprintf(stderr, "not granted: %s: %s\n", one->name, one->reason);
    }
    if (!l.grants.all) fprintf(stderr, "What grants it:\n%s", l.grants.advice);
    notify(&l.supervisor, "READY=1", title);
    run_loop(&l);
    notify(&l.supervisor, "STOPPING=1", l.why);
    for (int i = 0; i < PLACES; i++) drop(&l.connections, i);
    unlink(options->socket);
    if (!l.is_missed && !l.decider.has_failed) return 0;
    fprintf(stderr, "ended: %s\n", l.why);
    return l.is_missed ? EXIT_MISSED : EXIT_FAILED;
}
