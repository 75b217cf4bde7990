/* The kernel, asked without a C library: Linux on x86_64, AArch64 and ARMv7. */
#ifndef AGENT_SYSTEM_H
#define AGENT_SYSTEM_H
#include <stddef.h>
#include <stdint.h>

#if defined __x86_64__
enum { READ = 0, WRITE = 1, CLOSE = 3, LSEEK = 8, MMAP = 9, MADVISE = 28, GETPID = 39, UNAME = 63, GETRUSAGE = 98 };
enum { PRCTL = 157, AFFINITY = 204, CLOCK = 228, EXIT = 231, OPENAT = 257 };
enum { RT_SIGPROCMASK = 14, SOCKET = 41, CONNECT = 42, SENDTO = 44, RECVFROM = 45, BIND = 49, LISTEN = 50, UMASK = 95 };
enum { GETUID = 102, GETEUID = 107, SCHED_SETSCHEDULER = 144, MLOCKALL = 151, SCHED_SETAFFINITY = 203, MKDIRAT = 258 };
enum { UNLINKAT = 263, PPOLL = 271, TIMERFD_CREATE = 283, TIMERFD_SETTIME = 286, ACCEPT4 = 288, SIGNALFD4 = 289 };
enum { PRLIMIT64 = 302, O_DIRECTORY = 0x10000 };
static long call(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
}
#ifndef AGENT_HOSTED
__asm__(".globl _start\n_start: xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call start\n");
#endif
#elif defined __aarch64__
enum { OPENAT = 56, CLOSE = 57, LSEEK = 62, READ = 63, WRITE = 64, EXIT = 94, CLOCK = 113, AFFINITY = 123, UNAME = 160 };
enum { GETRUSAGE = 165, PRCTL = 167, GETPID = 172, MMAP = 222, MADVISE = 233 };
enum { MKDIRAT = 34, UNLINKAT = 35, PPOLL = 73, SIGNALFD4 = 74, TIMERFD_CREATE = 85, TIMERFD_SETTIME = 86 };
enum { SCHED_SETSCHEDULER = 119, SCHED_SETAFFINITY = 122, RT_SIGPROCMASK = 135, UMASK = 166, GETUID = 174 };
enum { GETEUID = 175, SOCKET = 198, BIND = 200, LISTEN = 201, CONNECT = 203, SENDTO = 206, RECVFROM = 207 };
enum { MLOCKALL = 230, ACCEPT4 = 242, PRLIMIT64 = 261, O_DIRECTORY = 0x4000 };
static long call(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
}
#ifndef AGENT_HOSTED
__asm__(".globl _start\n_start: mov x29, #0\n mov x0, sp\n bl start\n");
#endif
#elif defined __arm__
enum { READ = 3, WRITE = 4, CLOSE = 6, LSEEK = 19, GETPID = 20, GETRUSAGE = 77, UNAME = 122, PRCTL = 172, MMAP = 192 };
enum { MADVISE = 220, AFFINITY = 242, EXIT = 248, CLOCK = 263, OPENAT = 322 };
enum { UMASK = 60, MLOCKALL = 152, SCHED_SETSCHEDULER = 156, RT_SIGPROCMASK = 175, GETUID = 199, GETEUID = 201 };
enum { SCHED_SETAFFINITY = 241, SOCKET = 281, BIND = 282, CONNECT = 283, LISTEN = 284, SENDTO = 290, RECVFROM = 292 };
enum { MKDIRAT = 323, UNLINKAT = 328, PPOLL = 336, TIMERFD_CREATE = 350, TIMERFD_SETTIME = 353, SIGNALFD4 = 355 };
enum { ACCEPT4 = 366, PRLIMIT64 = 369, O_DIRECTORY = 0x4000 };
static long call(long number, long a, long b, long c, long d, long e, long f)
{
    register long r7 __asm__("r7") = number, r0 __asm__("r0") = a, r1 __asm__("r1") = b, r2 __asm__("r2") = c;
    register long r3 __asm__("r3") = d, r4 __asm__("r4") = e, r5 __asm__("r5") = f;
    __asm__ volatile("svc 0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5) : "memory");
    return r0;
}
#ifndef AGENT_HOSTED
__asm__(".globl _start\n_start: mov fp, #0\n mov r0, sp\n bic sp, sp, #7\n bl start\n");
#endif
#endif

static long system_open(const char *path, int flags) { return call(OPENAT, -100, (long)path, flags, 0, 0, 0); }
static void system_close(long file) { call(CLOSE, file, 0, 0, 0, 0, 0); }
static long system_read(long file, void *to, size_t n) { return call(READ, file, (long)to, (long)n, 0, 0, 0); }
__attribute__((noreturn)) static void leave(int status)
{
    for (;;) call(EXIT, status, 0, 0, 0, 0, 0);
}

static int write_all(long file, const char *from, size_t n)
{
    while (n) {
        const long done = call(WRITE, file, (long)from, (long)n, 0, 0, 0);
        if (done == -4) continue; /* EINTR */
        if (done <= 0) return 0;
        from += done, n -= (size_t)done;
    }
    return 1;
}

static uint64_t now_ns(void)
{
    long t[2];
    call(CLOCK, 1, (long)t, 0, 0, 0, 0); /* CLOCK_MONOTONIC */
    return (uint64_t)t[0] * 1000000000u + (uint64_t)t[1];
}

/* A small file's text, ended by a 0, without line breaks and 0s at its end; its length, 0 where there is none. */
static size_t read_file(const char *path, char *to, size_t room)
{
    const long file = system_open(path, 0);
    size_t have = 0;
    if (file >= 0) {
        long n;
        while (have + 1 < room && (n = system_read(file, to + have, room - 1 - have)) > 0) have += (size_t)n;
        system_close(file);
    }
    while (have && (to[have - 1] == '\n' || to[have - 1] == ' ' || !to[have - 1])) have--;
    to[have] = 0;
    return have;
}

/* A file as read-only memory; NULL where there is none. */
static const void *mapped(const char *path, size_t *bytes)
{
    const long file = system_open(path, 0);
    if (file < 0) return 0;
    const long size = call(LSEEK, file, 0, 2, 0, 0, 0);
    const long at = size > 0 ? call(MMAP, 0, size, 1, 2, file, 0) : -1; /* PROT_READ, MAP_PRIVATE */
    system_close(file);
    *bytes = size > 0 ? (size_t)size : 0;
    return at < 0 && at > -4096 ? 0 : (const void *)at;
}
#endif
