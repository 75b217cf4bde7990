#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "internal.h"

void open_supervisor(struct supervisor *s)
{
    const char *address = getenv("NOTIFY_SOCKET"), *limit = getenv("WATCHDOG_USEC");
    const size_t n = address ? strlen(address) : 0;
    s->file = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    s->is_there = n > 0 && n < sizeof s->address.sun_path;
    if (s->is_there) {
        const int is_abstract = *address == '@';
        s->address = (struct sockaddr_un){.sun_family = AF_UNIX};
        memcpy(s->address.sun_path, address, n);
        if (is_abstract) s->address.sun_path[0] = 0;
        s->address_size = (unsigned)(offsetof(struct sockaddr_un, sun_path) + n + !is_abstract);
    }
    char *end;
    const unsigned long long limit_us = limit ? strtoull(limit, &end, 10) : 0;
    s->heartbeat_ns = limit_us && !*end && limit_us < 1ull << 48 ? (int64_t)limit_us * 1000 / 3 : USUAL_HEARTBEAT_NS;
}

/* A supervisor that is gone or busy is no reason to miss a deadline. */
void notify(const struct supervisor *s, const char *message, const char *status)
{
    char room[1024];
    struct text t = text_of(room, sizeof room);
    print(&t, status ? "%s\nSTATUS=%s" : "%s", message, status);
    if (s->is_there)
        sendto(s->file, room, text_size(&t), MSG_DONTWAIT | MSG_NOSIGNAL, (const void *)&s->address, s->address_size);
}
