/* What keeps a loop punctual on Linux: a real-time priority, memory that stays, a core. What is not granted is
 * said, with the lines that grant it (device/agent/loop/real_time.py). */
#ifndef AGENT_LOOP_REAL_TIME_H
#define AGENT_LOOP_REAL_TIME_H
#include "../device.h"
#include "kernel.h"

/* MCL_ONFAULT: what is never touched, most of this program's memory, is not made resident. */
enum { MCL_CURRENT = 1, MCL_FUTURE = 2, MCL_ONFAULT = 4, RLIMIT_MEMLOCK = 8, RLIMIT_RTPRIO = 14 };
enum { SCHED_FIFO = 1, SCHED_RESET_ON_FORK = 0x40000000, SET_TIMERSLACK = 29 };

struct granted { int is_granted; char name[32], reason[192]; };
struct real_time { int count; struct granted one[3]; };

static struct text begin_granted(struct real_time *r, const char *name, int64_t number)
{
    struct granted *g = &r->one[r->count++];
    struct text t = {g->name, g->name, g->name + sizeof g->name - 1};
    put(&t, name);
    if (number >= 0) put_char(&t, ' '), put_signed(&t, number);
    *t.at = 0;
    return (struct text){g->reason, g->reason, g->reason + sizeof g->reason - 1};
}

static void end_granted(struct real_time *r, struct text *reason)
{
    *reason->at = 0;
    r->one[r->count - 1].is_granted = reason->at == reason->begin;
}

/* The limit of a resource, as far as it can be raised. */
static uint64_t raised_limit(int resource)
{
    uint64_t limit[2] = {0, 0};
    call(PRLIMIT64, 0, resource, 0, (long)limit, 0, 0);
    if (limit[0] != limit[1]) {
        limit[0] = limit[1];
        call(PRLIMIT64, 0, resource, (long)limit, 0, 0, 0);
    }
    return limit[1];
}

static void lock_memory(struct real_time *r)
{
    struct text reason = begin_granted(r, "mlockall", -1);
    const uint64_t limit = raised_limit(RLIMIT_MEMLOCK);
    /* Under a limit later allocations would fail: only where there is none, or root's capability. */
    if (limit != UINT64_MAX && call(GETEUID, 0, 0, 0, 0, 0, 0) != 0)
        put(&reason, "RLIMIT_MEMLOCK is "), put_unsigned(&reason, limit), put(&reason, " bytes");
    else {
        const long done = call(MLOCKALL, MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT, 0, 0, 0, 0, 0);
        if (done < 0) put_error(&reason, done);
    }
    end_granted(r, &reason);
}

static void pin(struct real_time *r, int core)
{
    uint64_t mask[16] = {0}, there[16] = {0};
    struct text reason = begin_granted(r, "core", core);
    mask[core / 64] = 1ull << core % 64;
    const long done = call(SCHED_SETAFFINITY, 0, sizeof mask, (long)mask, 0, 0, 0);
    if (done < 0) {
        put_error(&reason, done), put(&reason, "; this process may use ");
        call(AFFINITY, 0, sizeof there, (long)there, 0, 0, 0);
        for (int i = 0, any = 0; i < 1024; i++)
            if (there[i / 64] >> i % 64 & 1) put(&reason, any++ ? "," : ""), put_signed(&reason, i);
    }
    end_granted(r, &reason);
}

static void be_first(struct real_time *r, int priority)
{
    const int32_t parameter = priority;
    struct text reason = begin_granted(r, "SCHED_FIFO", priority);
    const uint64_t limit = raised_limit(RLIMIT_RTPRIO);
    const long done = call(SCHED_SETSCHEDULER, 0, SCHED_FIFO | SCHED_RESET_ON_FORK, (long)&parameter, 0, 0, 0);
    if (done < 0) put_error(&reason, done);
    if (done == -EPERM) put(&reason, "; RLIMIT_RTPRIO is "), put_unsigned(&reason, limit);
    end_granted(r, &reason);
}

/* Request what keeps this process punctual: a priority from 1 to 99, or 0; a core, or -1 for any. */
static void prepare_real_time(struct real_time *r, int priority, int core)
{
    lock_memory(r);
    if (core >= 0) pin(r, core);
    if (priority) be_first(r, priority);
    call(PRCTL, SET_TIMERSLACK, 1, 0, 0, 0, 0); /* an ordinary thread's sleeps may else end 50 us late */
}

static int is_all_granted(const struct real_time *r)
{
    int all = 1;
    for (int i = 0; i < r->count; i++) all &= r->one[i].is_granted;
    return all;
}

static void put_granted(struct text *t, const struct real_time *r)
{
    put_char(t, '[');
    for (int i = 0; i < r->count; i++) {
        const struct granted *g = &r->one[i];
        put(t, i ? ",{\"name\":\"" : "{\"name\":\""), put(t, g->name);
        put(t, g->is_granted ? "\",\"granted\":true,\"reason\":\"" : "\",\"granted\":false,\"reason\":\"");
        put(t, g->reason), put(t, "\"}");
    }
    put_char(t, ']');
}

/* This user's name, from /etc/passwd; where it is not there, the user's number as limits.conf takes it. */
static void put_user(struct text *t, uint64_t number)
{
    read_file("/etc/passwd", scratch, sizeof scratch);
    for (const char *s = scratch; *s;) {
        const char *name = s;
        size_t n = 0;
        double found = -1.0;
        while (name[n] && name[n] != ':' && name[n] != '\n') n++;
        const char *field = name + n;
        if (*field == ':') for (field++; *field && *field != ':' && *field != '\n';) field++;
        if (*field == ':' && number_at(field + 1, 1.0, &found) && found == (double)number) {
            put_bytes(t, name, n);
            return;
        }
        while (*s && *s != '\n') s++;
        if (*s) s++;
    }
    put_unsigned(t, number), put_char(t, ':'), put_unsigned(t, number);
}

/* The lines that grant this user what it was refused, as they are typed. */
static void put_what_grants_it(struct text *t)
{
    const uint64_t number = (uint64_t)call(GETUID, 0, 0, 0, 0, 0, 0);
    char room[64];
    struct text user = {room, room, room + sizeof room - 1};
    put_user(&user, number), *user.at = 0;
    put(t, "# /etc/security/limits.d/quarl.conf, as root; then: systemctl restart user@"), put_unsigned(t, number);
    put(t, " (or log in anew)\n"), put(t, room), put(t, " - rtprio 99\n");
    put(t, room), put(t, " - memlock unlimited\n");
}
#endif
