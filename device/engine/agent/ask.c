#include "ask.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "address.h"
#include "operations.h"

#define PATIENCE_S 15
enum { MOST_REPLY = 262144 };

static void end_late(int number)
{
    static const char LATE[] = "policy-agent: no reply within " STRINGIFY(PATIENCE_S) " s\n";
    (void)number;
    write_all(2, LATE, sizeof LATE - 1);
    _exit(1);
}

/* Connect to the socket at a path; negative, and errno, where nobody listens. */
static int connect_to(const char *path)
{
    char folder[4096] = ".";
    struct sockaddr_un address;
    const char *const slash = strrchr(path, '/'), *const name = slash ? slash + 1 : path;
    const size_t n = (size_t)(name - path);
    if (n >= sizeof folder) return errno = ENAMETOOLONG, -1;
    if (n) memcpy(folder, path, n), folder[n] = 0;
    const int descriptor = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return -1;
    if (!make_address(&address, descriptor, name)) return errno = ENAMETOOLONG, -1;
    const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return connection < 0 || connect(connection, (void *)&address, sizeof address) < 0 ? -1 : connection;
}

int ask(int count, char *const *words)
{
    static char reply[MOST_REPLY + 1];
    if (count != 2) return fputs("usage: " ASK_USAGE "\n", stderr), 2;
    signal(SIGALRM, end_late);      /* to connect and to send may wait, too */
    alarm(PATIENCE_S);
    const int connection = connect_to(words[0]);
    ssize_t n = -1;
    if (connection >= 0 && send(connection, words[1], strlen(words[1]), MSG_NOSIGNAL) >= 0)
        n = recv(connection, reply, MOST_REPLY, MSG_TRUNC);
    alarm(0);
    const char *const why = n < 0 ? strerror(errno) : n > MOST_REPLY ? "the reply is too long" : "it does not reply";
    if (n <= 0 || n > MOST_REPLY) return fprintf(stderr, "policy-agent: %s: %s\n", words[0], why), 1;
    if (reply[n - 1] != '\n') reply[n++] = '\n';
    if (write_all(1, reply, (size_t)n)) return 0;
    return fprintf(stderr, "policy-agent: the reply cannot be written: %s\n", strerror(errno)), 1;
}
