/* The loop's socket: who is connected, which of them is the controller, and what they have sent. No call here blocks. A
 * client that never reads loses its frames, and they are counted; a client that sends more than can be read in a period
 * has its newest observation used, and its connection is read on in the next one. */
#ifndef AGENT_LOOP_CONNECTIONS_H
#define AGENT_LOOP_CONNECTIONS_H
#include "deciding.h"
#include "kernel.h"

enum { NOBODY = -1 };

struct connections {
    long listener, signals;
    struct decider *decider;
    struct description hello;       /* what a controller learns */
    long client[MOST_CONNECTIONS];  /* files; NOBODY */
    int controller;                 /* where actions go: an index, or NOBODY */
    struct inbox *spare, inbox[2];
    size_t room;                    /* of an inbox that is used */
    int64_t unread, malformed;      /* packets that nobody read, or were too many; that were no frame of it */
    /* Requests that wait for an answer, the oldest first, by their places; only those that are used are touched. */
    int waiting;
    unsigned char order[MOST_REQUESTS];
    struct { int client, is_used; size_t size; } request[MOST_REQUESTS];
    char text[MOST_REQUESTS][sizeof(struct inbox) + 1];
};

static void open_connections(struct connections *c, long listener, long signals, struct decider *d)
{
    c->listener = listener, c->signals = signals, c->decider = d, c->controller = NOBODY;
    for (int i = 0; i < MOST_CONNECTIONS; i++) c->client[i] = NOBODY;
    c->spare = &c->inbox[0];
    const size_t largest = frame_bytes(d->observation_size) + 1;
    c->room = largest > JSON_ROOM ? largest : JSON_ROOM;
}

static void forget_request(struct connections *c, int at)
{
    c->request[c->order[at]].is_used = 0;
    c->waiting--;
    for (int i = at; i < c->waiting; i++) c->order[i] = c->order[i + 1];
}

static void drop(struct connections *c, int who)
{
    if (c->client[who] == NOBODY) return;
    system_close(c->client[who]);
    c->client[who] = NOBODY;
    for (int i = c->waiting - 1; i >= 0; i--) if (c->request[c->order[i]].client == who) forget_request(c, i);
    if (who == c->controller) c->controller = NOBODY;
}

/* Send one packet; a client that does not read loses it. Whether it was sent. */
static int send_to(struct connections *c, int who, const void *packet, size_t n)
{
    const long sent = send_packet(c->client[who], packet, n, 0);
    if (sent >= 0) return 1;
    if (sent == -EAGAIN || sent == -EMSGSIZE) c->unread++;
    else drop(c, who);
    return 0;
}

/* An error in JSON, of words that need no escapes. */
static void put_refusal(struct text *t, const char *code, const char *message, const char *next)
{
    put(t, "{\"ok\":false,\"op\":null,\"error\":{\"code\":\""), put(t, code);
    put(t, "\",\"message\":\""), put(t, message);
    put(t, "\",\"next\":\""), put(t, next), put(t, "\"}}");
}

static void refuse_packet(struct connections *c, int who, int kind, size_t size)
{
    char room[512], message[256];
    struct text t = {room, room, room + sizeof room}, m = {message, message, message + sizeof message - 1};
    const int is_other = c->controller != NOBODY;
    if (kind == KIND_HELLO || (kind == KIND_OBSERVATION && who != c->controller))
        put_refusal(&t, is_other ? CODE_UNAVAILABLE : CODE_BAD_REQUEST,
                    is_other ? "another controller is connected." : "this connection is not the controller's.",
                    is_other ? "End that one first." : "Send a HELLO frame before the first observation.");
    else {
        put(&m, "a packet of "), put_unsigned(&m, size);
        put(&m, " bytes is no frame of this policy; an observation frame has ");
        put_unsigned(&m, sizeof(struct header)), put(&m, " bytes and "), put_unsigned(&m, c->decider->observation_size);
        put(&m, " float32 values."), *m.at = 0;
        put_refusal(&t, kind == KIND_OBSERVATION ? CODE_BAD_OBSERVATION : CODE_BAD_REQUEST, message,
                    "device/agent/loop/frames.py describes the frames.");
    }
    send_to(c, who, room, (size_t)(t.at - room));
}

static void keep_request(struct connections *c, int who, const void *packet, size_t size)
{
    int place = 0;
    while (place < MOST_REQUESTS && c->request[place].is_used) place++;
    if (place == MOST_REQUESTS) {
        c->unread++;
        return;
    }
    __builtin_memcpy(c->text[place], packet, size);
    c->text[place][size] = 0;
    c->request[place].client = who, c->request[place].is_used = 1, c->request[place].size = size;
    c->order[c->waiting++] = (unsigned char)place;
}

static void read_other(struct connections *c, int who, const struct inbox *in, size_t size)
{
    const int kind = size >= sizeof in->head && in->head.magic == MAGIC ? in->head.kind : 0;
    if (kind == KIND_ECHO) send_to(c, who, in, size);
    else if (kind == KIND_HELLO && (c->controller == NOBODY || c->controller == who)) {
        c->controller = who;
        send_to(c, who, &c->hello, sizeof c->hello);
    } else if (*(const char *)in == '{') keep_request(c, who, in, size);
    else {
        c->malformed++;
        refuse_packet(c, who, kind, size);
    }
}

/* Read one packet: 1 an observation, 0 another; -1 when there is none, or the client is gone. */
static int read_one(struct connections *c, int who)
{
    struct inbox *in = c->spare;
    const long size = call(RECVFROM, c->client[who], (long)in, (long)c->room, MSG_DONTWAIT, 0, 0);
    if (size == -EAGAIN) return -1;
    if (size <= 0) {
        drop(c, who);
        return -1;
    }
    const int may_be_one = who == c->controller && (size_t)size >= sizeof in->head && (size_t)size < c->room;
    if (may_be_one && take(c->decider, in, (size_t)size)) {
        c->spare = in == &c->inbox[0] ? &c->inbox[1] : &c->inbox[0];
        return 1;
    }
    read_other(c, who, in, (size_t)size);
    return 0;
}

/* Let in one who waits; the index, NOBODY where there is none left, or MOST_CONNECTIONS for one that was sent away. */
static int accept_one(struct connections *c)
{
    char limit[160];
    struct text t = {limit, limit, limit + sizeof limit};
    const long file = call(ACCEPT4, c->listener, 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC, 0, 0);
    int place = 0;
    if (file < 0) return NOBODY;    /* nobody waits, or this process has no descriptor left */
    while (place < MOST_CONNECTIONS && c->client[place] != NOBODY) place++;
    if (place < MOST_CONNECTIONS) c->client[place] = file;
    else {
        put_refusal(&t, CODE_UNAVAILABLE, STRING(MOST_CONNECTIONS) " connections are open already.", "Close one first.");
        send_packet(file, limit, (size_t)(t.at - limit), 0), system_close(file);
    }
    return place;
}

static void read_of(struct connections *c, int who)
{
    for (int left = who == c->controller ? MOST_PACKETS : MOST_OF_OTHERS; left && read_one(c, who) >= 0; left--) {}
}

/* Read what everyone has sent; the newest observation is the decider's. */
static void read_all(struct connections *c)
{
    for (int i = 0; i < MOST_CONNECTIONS; i++) if (c->client[i] != NOBODY) read_of(c, i);
    for (int who; (who = accept_one(c)) != NOBODY;) if (who < MOST_CONNECTIONS) read_of(c, who);
}

static int has_ended_by_signal(const struct connections *c)
{
    char info[128];                 /* struct signalfd_siginfo */
    return call(READ, c->signals, (long)info, sizeof info, 0, 0, 0) == sizeof info;
}

/* The files to wait for: the signals, the listener, and the clients in their places. */
enum { WAITED_SIGNALS, WAITED_LISTENER, WAITED_CLIENTS, WAITED = WAITED_CLIENTS + MOST_CONNECTIONS };
static long wait_for_packets(const struct connections *c, struct pollfd files[WAITED], int64_t timeout_ns)
{
    files[WAITED_SIGNALS] = (struct pollfd){(int32_t)c->signals, POLLIN, 0};
    files[WAITED_LISTENER] = (struct pollfd){(int32_t)c->listener, POLLIN, 0};
    for (int i = 0; i < MOST_CONNECTIONS; i++) /* a negative file is not waited for */
        files[WAITED_CLIENTS + i] = (struct pollfd){(int32_t)c->client[i], POLLIN, 0};
    return wait_for(files, WAITED, timeout_ns);
}
#endif
