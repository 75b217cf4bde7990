/* systemd's notification protocol: ready, still alive, stopping. Any supervisor that sets NOTIFY_SOCKET hears it. */
#ifndef AGENT_LOOP_NOTIFYING_H
#define AGENT_LOOP_NOTIFYING_H
#include "../device.h"
#include "constants.h"
#include "kernel.h"

struct notifier {
    long file;
    int is_heard;                   /* whether there is a supervisor */
    struct address supervisor;
    int64_t heartbeat_ns;           /* how often "alive" is due: a third of the supervisor's limit */
};

/* What an environment variable holds; empty where there is none. */
static const char *variable(char *const *environment, const char *name)
{
    const size_t n = length_of(name);
    for (; *environment; environment++)
        if (begins(*environment, name) && (*environment)[n] == '=') return *environment + n + 1;
    return "";
}

static void open_notifier(struct notifier *n, char *const *environment)
{
    const char *s = variable(environment, "NOTIFY_SOCKET");
    n->is_heard = make_address(&n->supervisor, s, length_of(s));
    if (n->is_heard && *s == '@') n->supervisor.path[0] = 0, n->supervisor.size--; /* abstract: no 0 at its end */
    n->file = open_socket(SOCK_DGRAM);
    n->heartbeat_ns = USUAL_HEARTBEAT_NS;
    int64_t limit_us = 0;
    for (s = variable(environment, "WATCHDOG_USEC"); *s >= '0' && *s <= '9' && limit_us < (int64_t)1 << 48; s++)
        limit_us = 10 * limit_us + (*s - '0'), n->heartbeat_ns = limit_us * 1000 / 3;
    if (*s) n->heartbeat_ns = USUAL_HEARTBEAT_NS;
}

/* A supervisor that is gone or busy is no reason to miss a deadline. */
static void notify(const struct notifier *n, const char *message, const char *status)
{
    char room[1024];
    struct text t = {room, room, room + sizeof room};
    put(&t, message);
    if (status) put(&t, "\nSTATUS="), put(&t, status);
    if (n->is_heard) send_packet(n->file, room, (size_t)(t.at - room), &n->supervisor);
}
#endif
