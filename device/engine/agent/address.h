/* A path may be longer than a socket's address; through its folder's descriptor it never is. */
#ifndef AGENT_ADDRESS_H
#define AGENT_ADDRESS_H
#include <sys/socket.h>
#include <sys/un.h>

#include "text.h"

/* The address of a name in a folder; 0 where even that is too long. */
static inline int make_address(struct sockaddr_un *a, int folder, const char *name)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    struct text t = text_of(a->sun_path, sizeof a->sun_path);
    print(&t, "/proc/self/fd/%d/%s", folder, name);
    return t.at < t.end;
}
#endif
