/* The socket that a loop listens on: only its owner may connect, one that is left over is replaced, one that another
 * loop listens on is not. A path may be longer than a socket's address; through its folder's descriptor it never is. */
#ifndef AGENT_LOOP_LISTENING_H
#define AGENT_LOOP_LISTENING_H
#include "connections.h"
#include "kernel.h"

enum { MOST_PATH = 4096 };

/* Make the folder of a path, and those above it. */
static void make_folders(const char *path, size_t folder)
{
    char part[MOST_PATH];
    for (size_t i = 1; i <= folder; i++) {
        if (i < folder && path[i] != '/') continue;
        __builtin_memcpy(part, path, i);
        part[i] = 0;
        call(MKDIRAT, AT_FDCWD, (long)part, i == folder ? 0700 : 0777, 0, 0, 0); /* those that are there stay */
    }
}

static int is_listened_to(const struct address *a)
{
    const long probe = open_socket(SOCK_SEQPACKET);
    const long done = call(CONNECT, probe, (long)a, a->size, 0, 0, 0);
    system_close(probe);
    return done == 0 || done == -EAGAIN; /* EAGAIN: so many wait to be let in that no more may */
}

/* The listening socket, or an error's number; -EADDRINUSE: another loop listens there. */
static long listen_at(const char *path)
{
    char folder[MOST_PATH], room[sizeof((struct address *)0)->path];
    struct address a;
    size_t n = length_of(path), slash = 0;
    for (size_t i = 0; i < n; i++) if (path[i] == '/') slash = i;
    if (n >= MOST_PATH) return -ENAMETOOLONG;
    if (slash) make_folders(path, slash);
    __builtin_memcpy(folder, path, slash + 1);
    folder[slash ? slash : 1] = 0;
    const long descriptor = system_open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return descriptor;
    struct text t = {room, room, room + sizeof room};
    put(&t, "/proc/self/fd/"), put_signed(&t, descriptor), put(&t, path + slash);
    long found = make_address(&a, room, (size_t)(t.at - room)) ? 0 : -ENAMETOOLONG;
    if (!found && is_listened_to(&a)) found = -EADDRINUSE;
    if (!found) {
        found = call(UNLINKAT, descriptor, (long)(path + slash + 1), 0, 0, 0, 0);
        if (found == -ENOENT) found = 0;
    }
    const long listener = open_socket(SOCK_SEQPACKET);
    if (!found) {
        const long before = call(UMASK, 0177, 0, 0, 0, 0, 0);
        found = call(BIND, listener, (long)&a, a.size, 0, 0, 0);
        call(UMASK, before, 0, 0, 0, 0, 0);
    }
    if (!found) found = call(LISTEN, listener, MOST_CONNECTIONS, 0, 0, 0, 0);
    system_close(descriptor);
    if (found < 0) system_close(listener);
    return found < 0 ? found : listener;
}
#endif
