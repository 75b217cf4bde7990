/* No call here blocks. A controller that never reads loses its frames, and they are counted; another client that
 * does not read its replies is cut. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/address.h"
#include "internal.h"

/* ---- listening --------------------------------------------------------------------------------------------------- */

/* Only the owner may connect; a socket that is left over is replaced, one that another loop listens on is not. */

/* Make the folder of a path, and those above it; those that are there stay. */
static void make_folders(const char *folder)
{
    char part[4096];
    for (size_t i = 1, n = strlen(folder); i <= n; i++) {
        if (i < n && folder[i] != '/') continue;
        memcpy(part, folder, i);
        part[i] = 0;
        mkdir(part, i == n ? 0700 : 0777);
    }
}

static int open_unix_socket(void) { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

static int is_listened_to(const struct sockaddr_un *a)
{
    const int probe = open_unix_socket();
    const int failed = connect(probe, (const void *)a, sizeof *a) < 0 ? errno : 0;
    close(probe);
    return !failed || failed == EAGAIN; /* EAGAIN: too many wait for accept */
}

static int bind_privately(const struct sockaddr_un *a)
{
    const int listener = open_unix_socket();
    const mode_t before = umask(0177);
    const int failed = bind(listener, (const void *)a, sizeof *a) < 0 || listen(listener, BACKLOG) < 0 ? errno : 0;
    umask(before);
    if (failed) close(listener);
    return failed ? -failed : listener;
}

int listen_at(const char *path)
{
    char folder[4096];
    struct sockaddr_un a;
    const char *const name = strrchr(path, '/') + 1; /* the path is absolute */
    const size_t n = (size_t)(name - path);
    if (n >= sizeof folder) return -ENAMETOOLONG;
    memcpy(folder, path, n), folder[n > 1 ? n - 1 : n] = 0;
    make_folders(folder);
    const int descriptor = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return -errno;
    const int is_short = make_address(&a, descriptor, name);
    int listener = -ENAMETOOLONG;
    if (is_short && is_listened_to(&a)) listener = -EADDRINUSE;
    else if (is_short) {
        if (unlinkat(descriptor, name, 0) < 0 && errno != ENOENT) listener = -errno;
        else listener = bind_privately(&a);
    }
    close(descriptor);
    return listener;
}

/* ---- clients ----------------------------------------------------------------------------------------------------- */

int is_reserved(int who) { return who >= MOST_CONNECTIONS; }

void open_connections(struct connections *c, int listener, int signals, struct decider *d)
{
    const struct loop_policy *p = d->policy;
    c->listener = listener, c->signals = signals, c->decider = d, c->controller = NOBODY;
    c->longest = REQUEST_BYTES + BYTES_PER_VALUE * (size_t)p->observation_size;
    const uint32_t most = p->observation_size > p->period_size ? p->observation_size : p->period_size;
    c->room = frame_bytes(most) + 1;  /* a byte more, so that a longer packet is seen to be one */
    if (c->room < c->longest + 1) c->room = c->longest + 1;
    if (c->room < ECHO_BYTES) c->room = ECHO_BYTES;
    for (int i = 0; i < 2; i++) c->inbox[i] = aligned_alloc(64, (c->room + 63) / 64 * 64);
    c->spare = c->inbox[0];
    for (int i = 0; i < PLACES; i++) c->client[i].file = NOBODY, c->client[i].text = malloc(c->longest + LINE_SLACK);
}

void drop(struct connections *c, int who)
{
    struct client *one = &c->client[who];
    char rest[64];
    if (one->file == NOBODY) return;
    /* What it has sent and nobody read would make the kernel discard what was sent to it. */
    for (int i = 0; i < MOST_OF_OTHERS && recv(one->file, rest, sizeof rest, MSG_DONTWAIT) > 0; i++) {}
    close(one->file);
    one->file = NOBODY, one->size = 0;
    if (who == c->controller) c->controller = NOBODY;
}

/* Send one packet; a client that does not read loses it. Whether it was sent. */
int send_to(struct connections *c, int who, const void *packet, size_t n)
{
    if (send(c->client[who].file, packet, n, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return 1;
    if (errno == EAGAIN || errno == EMSGSIZE) c->unread++;
    if (errno != EMSGSIZE && (errno != EAGAIN || who != c->controller)) drop(c, who);
    return 0;
}

void refuse_client(struct connections *c, int who, const char *code, const char *message, const char *next)
{
    char room[512];
    struct text t = text_of(room, sizeof room);
    print(&t, "{\"ok\":false,\"op\":null,\"error\":{\"code\":\"%s\",\"message\":\"%s\",", code, message);
    print(&t, "\"next\":\"%s\"}}", next);
    if (send_to(c, who, room, text_size(&t)) && is_reserved(who) && who != c->controller) drop(c, who);
}

static void refuse_frame(struct connections *c, int who, int kind, size_t size)
{
    char message[256];
    struct text t = text_of(message, sizeof message - 1);
    c->malformed++;
    if (kind == KIND_HELLO || (kind == KIND_OBSERVATION && who != c->controller)) {
        if (c->controller == NOBODY)
            refuse_client(c, who, CODE_BAD_REQUEST, "this connection is not the controller's.",
                          "Send a HELLO frame before the first observation.");
        else refuse_client(c, who, CODE_UNAVAILABLE, "another controller is connected.", "End that one first.");
        return;
    }
    const struct loop_policy *p = c->decider->policy;
    print(&t, "a packet of %zu bytes is not a frame of this policy; an observation frame has %zu bytes and ", size,
          sizeof(struct header));
    if (p->period_size != p->observation_size && !p->state_size) print(&t, "%u or ", p->period_size);
    print(&t, "%u float32 values.", p->state_size ? p->period_size : p->observation_size);
    *t.at = 0;
    refuse_client(c, who, kind == KIND_OBSERVATION ? CODE_BAD_OBSERVATION : CODE_BAD_REQUEST, message,
                  "device/agent/loop/frames.py describes the frames.");
}

/* Keep a request until there is time to answer it. */
static void keep_request(struct connections *c, int who, const void *packet, size_t size)
{
    struct client *one = &c->client[who];
    char message[128];
    struct text t = text_of(message, sizeof message - 1);
    if (one->size) {                /* only a controller is read on while its request waits */
        c->unread++;
        return;
    }
    if (size > c->longest) {        /* unread: to parse 65 kB takes long, too */
        print(&t, "a request of %zu bytes or more is not answered within a loop; at most %zu are, one observation.",
              size, c->longest);
        *t.at = 0;
        refuse_client(c, who, CODE_UNAVAILABLE, message,
                      "Send one observation a request, or batches to the agent: run-agent.");
        return;
    }
    memcpy(one->text, packet, size);
    one->text[size] = 0, one->size = size, one->asked_ns = now_ns();
}

static void become_controller(struct connections *c, int who)
{
    c->controller = who;
    send_to(c, who, &c->hello, sizeof c->hello);
}

static void read_other(struct connections *c, int who, const struct frame *in, size_t size)
{
    const int is_frame = size >= sizeof in->head && in->head.magic == MAGIC;
    const int kind = is_frame ? in->head.kind : 0;
    if (kind == KIND_HELLO && (c->controller == NOBODY || c->controller == who)) become_controller(c, who);
    else if (*(const char *)in == '{') keep_request(c, who, in, size);
    else if (kind == KIND_ECHO && (!is_reserved(who) || who == c->controller)) send_to(c, who, in, size);
    else if (kind == KIND_ECHO)
        refuse_client(c, who, CODE_UNAVAILABLE, "as many connections as there may be are open.", "Close one first.");
    else refuse_frame(c, who, kind, size);
}

int read_one(struct connections *c, int who)
{
    struct frame *in = c->spare;
    struct client *one = &c->client[who];
    const ssize_t size = recv(one->file, in, c->room, MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
    if (size <= 0) {
        drop(c, who);
        return -1;
    }
    one->has_greeted = 1;
    const int may_be_one = who == c->controller && (size_t)size >= sizeof in->head && (size_t)size < c->room;
    if (may_be_one && take(c->decider, in, (size_t)size)) {
        c->spare = in == c->inbox[0] ? c->inbox[1] : c->inbox[0];
        return 1;
    }
    read_other(c, who, in, (size_t)size);
    return 0;
}

void read_controller(struct connections *c)
{
    for (int left = MOST_PACKETS; left && c->controller != NOBODY && read_one(c, c->controller) >= 0; left--) {}
}

/* A free place; PLACES where there is none. */
static int find_place(const struct connections *c)
{
    int place = 0;
    while (place < PLACES && c->client[place].file != NOBODY) place++;
    return place;
}

int has_place(const struct connections *c) { return find_place(c) < PLACES; }

int accept_one(struct connections *c)
{
    const int place = find_place(c);
    if (place == PLACES) return 0;  /* it waits: the reserved places are soon free again */
    const int file = accept4(c->listener, 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (file < 0) return 0;         /* nobody waits, or this process has no descriptor left */
    struct client *one = &c->client[place];
    one->file = file, one->has_greeted = 0, one->since_ns = now_ns(), one->size = 0;
    return 1;
}

void cut_silent(struct connections *c, int64_t now)
{
    for (int i = 0; i < PLACES; i++) {
        const struct client *one = &c->client[i];
        if (one->file == NOBODY || one->has_greeted) continue;
        if (now - one->since_ns > (is_reserved(i) ? RESERVED_GREETING_NS : GREETING_NS)) drop(c, i);
    }
}
