/* What a loop needs of the kernel besides system.h: sockets, a timer, signals that are read as a file, and the words
 * for its errors. Nothing here blocks but wait_for. */
#ifndef AGENT_LOOP_KERNEL_H
#define AGENT_LOOP_KERNEL_H
#include "../system.h"
#include "../text.h"

enum { AF_UNIX = 1, SOCK_DGRAM = 2, SOCK_SEQPACKET = 5, SOCK_NONBLOCK = 0x800, SOCK_CLOEXEC = 0x80000 };
enum { MSG_DONTWAIT = 0x40, MSG_NOSIGNAL = 0x4000, POLLIN = 1, O_PATH = 0x200000, O_CLOEXEC = 0x80000 };
enum { EPERM = 1, ENOENT = 2, EAGAIN = 11, ENAMETOOLONG = 36, EMSGSIZE = 90, EADDRINUSE = 98, AT_FDCWD = -100 };
enum { SIGHUP = 1, SIGINT = 2, SIGPIPE = 13, SIGTERM = 15 };

struct address { uint16_t family; char path[108]; uint32_t size; };
struct pollfd { int32_t file; int16_t wanted, found; };

static long open_socket(int kind) { return call(SOCKET, AF_UNIX, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, 0, 0, 0); }

/* An address of these bytes, of which the first may be 0; 0 where they are too many. */
static int make_address(struct address *a, const char *path, size_t n)
{
    *a = (struct address){.family = AF_UNIX};
    if (!n || n >= sizeof a->path) return 0;
    __builtin_memcpy(a->path, path, n);
    a->size = (uint32_t)(2 + n + (a->path[0] ? 1 : 0)); /* a path has its 0, an abstract name has none */
    return 1;
}

static long send_packet(long file, const void *from, size_t n, const struct address *to)
{
    return call(SENDTO, file, (long)from, (long)n, MSG_DONTWAIT | MSG_NOSIGNAL, (long)to, to ? (long)to->size : 0);
}

/* Wait for one of these files, at most so long, or for ever where that is negative; how many are ready. */
static long wait_for(struct pollfd *files, int count, int64_t timeout_ns)
{
    long limit[2] = {(long)(timeout_ns / 1000000000), (long)(timeout_ns % 1000000000)};
    const long ready = call(PPOLL, (long)files, count, timeout_ns < 0 ? 0 : (long)limit, 0, 0, 0);
    if (ready < 0) for (int i = 0; i < count; i++) files[i].found = 0; /* EINTR */
    return ready < 0 ? 0 : ready;
}

/* The signals that end a loop, as a file that is read when one comes. */
static long open_signals(void)
{
    const uint64_t ending = 1ull << (SIGHUP - 1) | 1ull << (SIGINT - 1) | 1ull << (SIGTERM - 1);
    const uint64_t blocked = ending | 1ull << (SIGPIPE - 1);
    call(RT_SIGPROCMASK, 0, (long)&blocked, 0, sizeof blocked, 0, 0);
    return call(SIGNALFD4, -1, (long)&ending, sizeof ending, SOCK_NONBLOCK | SOCK_CLOEXEC, 0, 0);
}

static long open_timer(void) { return call(TIMERFD_CREATE, 1, SOCK_NONBLOCK | SOCK_CLOEXEC, 0, 0, 0, 0); }

/* Let the timer be ready from that time of CLOCK_MONOTONIC on. */
static void set_timer(long timer, int64_t due_ns)
{
    if (due_ns < 1) due_ns = 1;
    const long setting[4] = {0, 0, (long)(due_ns / 1000000000), (long)(due_ns % 1000000000)};
    call(TIMERFD_SETTIME, timer, 1, (long)setting, 0, 0, 0); /* TFD_TIMER_ABSTIME */
}

static void put_error(struct text *t, long result)
{
    static const struct { int number; const char *words; } KNOWN[] = {
        {EPERM, "Operation not permitted"}, {ENOENT, "No such file or directory"}, {EAGAIN, "Resource unavailable"},
        {12, "Cannot allocate memory"}, {13, "Permission denied"}, {17, "File exists"}, {20, "Not a directory"},
        {21, "Is a directory"}, {22, "Invalid argument"}, {24, "Too many open files"}, {28, "No space left on device"},
        {30, "Read-only file system"}, {ENAMETOOLONG, "File name too long"}, {38, "Function not implemented"},
        {EADDRINUSE, "Address already in use"},
    };
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (KNOWN[i].number == -result) {
            put(t, KNOWN[i].words);
            return;
        }
    put(t, "error "), put_signed(t, -result);
}
#endif
