/* An ordinary user gets the priority and the locked memory only within limits that root grants; what is not granted is
 * reported, with the lines that grant it. */
#include <errno.h>
#include <pwd.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

#ifndef MCL_ONFAULT
#define MCL_ONFAULT 4
#endif

static struct text begin_grant(struct grants *g, const char *name, int number)
{
    struct grant *one = &g->one[g->count++];
    struct text t = text_of(one->name, sizeof one->name - 1);
    put(&t, name);
    if (number >= 0) print(&t, " %d", number);
    *t.at = 0;
    return text_of(one->reason, sizeof one->reason - 1);
}

static void end_grant(struct grants *g, struct text *reason)
{
    *reason->at = 0;
    g->one[g->count - 1].is_granted = reason->at == reason->begin;
    g->all &= reason->at == reason->begin;
}

/* The limit of a resource, as far as it can be raised. */
static rlim_t raise_limit(int resource)
{
    struct rlimit limit = {0, 0};
    getrlimit(resource, &limit);
    if (limit.rlim_cur != limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(resource, &limit);
    }
    return limit.rlim_max;
}

static void lock_memory(struct grants *g, int locks_all)
{
    struct text reason = begin_grant(g, "mlockall", -1);
    const rlim_t limit = raise_limit(RLIMIT_MEMLOCK);
    /* Under a limit later allocations would fail: only where there is none, or root's capability. */
    if (limit != RLIM_INFINITY && geteuid() != 0)
        print(&reason, "RLIMIT_MEMLOCK is %llu bytes", (unsigned long long)limit);
    else if (mlockall(MCL_CURRENT | MCL_FUTURE | (locks_all ? 0 : MCL_ONFAULT)) < 0) put(&reason, strerror(errno));
    end_grant(g, &reason);
}

static void pin(struct grants *g, int core)
{
    cpu_set_t wanted, there;
    struct text reason = begin_grant(g, "core", core);
    CPU_ZERO(&wanted);
    CPU_SET(core, &wanted);
    if (sched_setaffinity(0, sizeof wanted, &wanted) < 0) {
        print(&reason, "%s; this process may use ", strerror(errno));
        sched_getaffinity(0, sizeof there, &there);
        for (int i = 0, any = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &there)) print(&reason, any++ ? ",%d" : "%d", i);
    }
    end_grant(g, &reason);
}

/* By the system call: musl's sched_setscheduler refuses. */
static void raise_priority(struct grants *g, int priority)
{
    const struct sched_param parameter = {.sched_priority = priority};
    struct text reason = begin_grant(g, "SCHED_FIFO", priority);
    const rlim_t limit = raise_limit(RLIMIT_RTPRIO);
    if (syscall(SYS_sched_setscheduler, 0, SCHED_FIFO | SCHED_RESET_ON_FORK, &parameter) < 0) {
        put(&reason, strerror(errno));
        if (errno == EPERM) print(&reason, "; RLIMIT_RTPRIO is %llu", (unsigned long long)limit);
    }
    end_grant(g, &reason);
}

/* For this user, and the services of its own systemd. PAM sets the limits when the user's manager starts; a drop-in of
 * user@.service alone does not hold, since Debian's pam_limits resets it. */
static void put_advice(struct text *t)
{
    char user[64];
    struct text name = text_of(user, sizeof user - 1);
    const struct passwd *known = getpwuid(getuid());
    if (known) put(&name, known->pw_name);
    else print(&name, "%u:%u", getuid(), getuid()); /* as limits.conf takes a number */
    *name.at = 0;
    print(t, "# /etc/security/limits.d/quarl.conf, as root; then: systemctl restart user@%u (or log in again)\n"
             "%s - rtprio 99\n%s - memlock unlimited\n", getuid(), user, user);
}

void request_real_time(struct grants *g, int priority, int core, int locks_all)
{
    g->all = 1;
    lock_memory(g, locks_all);
    if (core >= 0) pin(g, core);
    if (priority) raise_priority(g, priority);
    struct text advice = text_of(g->advice, sizeof g->advice - 1);
    if (!g->all) put_advice(&advice);
    *advice.at = 0;
    prctl(PR_SET_TIMERSLACK, 1ul, 0ul, 0ul, 0ul); /* an ordinary thread's sleeps may else end 50 us late */
}

void put_grants(struct text *t, const struct grants *g)
{
    for (int i = 0; i < g->count; i++) {
        const struct grant *one = &g->one[i];
        print(t, "%s{\"name\":\"%s\",\"granted\":%s,\"reason\":\"%s\"}", i ? "," : "[", one->name,
              one->is_granted ? "true" : "false", one->reason);
    }
    put_char(t, ']');
}
