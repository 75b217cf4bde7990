#include "supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "address.h"
#include "clock.h"
#include "operations.h"

#define SECOND_NS 1000000000ll
#define WITHIN_S 60
#define START_S 120.0
enum { BURST = 5, STOP_S = 5, PAUSE_MS = 500, LOOK_MS = 250, MOST_LOG = 4096, MOST_NAME = 64 };
enum { INHERITED = 1024, HIGH = 100 };

struct keeper {
    const char *policy;
    char *const *command;
    double watchdog_s, memory_bytes;
    int folder, signals, state_file, notified, output; /* -1: not open */
    pid_t child;                    /* 0: none */
    int status, restarts, has_to_end; /* status: of the loop that ended last; -9, by SIGKILL */
    int64_t started_ns[BURST];      /* when the loop was started the last times; 0 before */
    size_t log_size;
    char log[MOST_LOG], why[256];
};

/* ---- what it knows, in memory and on a disk that may take nothing ------------------------------------------------ */

struct name { char text[MOST_NAME + 16]; };

static struct name name_file(const struct keeper *k, const char *kind)
{
    struct name name;
    snprintf(name.text, sizeof name.text, "%s.%s", k->policy, kind);
    return name;
}

static int open_file(const struct keeper *k, struct name name, int flags)
{
    return openat(k->folder, name.text, flags | O_CREAT | O_CLOEXEC, 0600);
}

/* Lock one of our files for us alone; -1 and errno where it cannot be. NFS locks so only what is open to be written,
 * which on other disks would keep them from being made read-only. */
static int lock_file(const struct keeper *k, const char *kind)
{
    const struct name name = name_file(k, kind);
    for (int flags = O_RDONLY;; flags = O_RDWR) {
        const int file = open_file(k, name, flags);
        if (file < 0 || !flock(file, LOCK_EX | LOCK_NB)) return file;
        close(file); /* which leaves errno alone */
        if (errno != EBADF || flags == O_RDWR) return -1;
    }
}

/* Write one of our files as far as the disk lets us, whole or not at all: no robot stops for it. */
static void keep_file(const struct keeper *k, const char *kind, const char *content, size_t n)
{
    const struct name name = name_file(k, kind);
    struct name part;
    snprintf(part.text, sizeof part.text, "%.*s.part", MOST_NAME + 8, name.text);
    const int file = open_file(k, part, O_WRONLY | O_TRUNC);
    if (file < 0) return;
    const int is_whole = write_all(file, content, n);
    if (!close(file) && is_whole) renameat(k->folder, part.text, k->folder, name.text);
}

/* Write down what holds now, and why the loop ended last. */
static void write_state(struct keeper *k, const char *state)
{
    char room[1024];
    struct text t = text_of(room, sizeof room);
    const int is_there = !strcmp(state, "starting") || !strcmp(state, "active");
    print(&t, "{\"state\":\"%s\",\"pid\":%d,", state, is_there ? (int)k->child : 0);
    print(&t, "\"restarts\":%d,\"why\":", k->restarts);
    put_string(&t, k->why, strlen(k->why)), put_char(&t, '}');
    const int fresh = memfd_create("quarl-state", MFD_CLOEXEC);
    if (fresh >= 0 && write_all(fresh, room, text_size(&t))) {
        if (k->state_file < 0) k->state_file = fcntl(fresh, F_DUPFD_CLOEXEC, 0);
        else dup3(fresh, k->state_file, O_CLOEXEC); /* at once: nobody reads half of it */
    }
    if (fresh >= 0) close(fresh);
    keep_file(k, "state", room, text_size(&t));
}

/* Take what the loop wrote last; 0 once it writes no more. */
static int read_log(struct keeper *k)
{
    static char block[65536];       /* as much as a pipe holds */
    const ssize_t n = read(k->output, block, sizeof block);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    const size_t fresh = n < MOST_LOG ? (size_t)n : MOST_LOG, room = MOST_LOG - fresh;
    const size_t kept = k->log_size < room ? k->log_size : room;
    memmove(k->log, k->log + k->log_size - kept, kept);
    memcpy(k->log + kept, block + (size_t)n - fresh, fresh);
    k->log_size = kept + fresh;
    if (n) keep_file(k, "log", k->log, k->log_size);
    return n > 0;
}

/* ---- the loop's start -------------------------------------------------------------------------------------------- */

/* Open the socket that heartbeats come to, where it is not open yet; 0 and errno where it cannot be. */
static int open_notified(struct keeper *k)
{
    const struct name name = name_file(k, "notify");
    char limit[32];
    struct sockaddr_un address;
    if (k->notified >= 0) return 1;
    make_address(&address, k->folder, name.text); /* which the name's length allows */
    if (unlinkat(k->folder, name.text, 0) < 0 && errno != ENOENT) return 0;
    const int file = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    snprintf(limit, sizeof limit, "%.0f", 1e6 * k->watchdog_s);
    if (file >= 0 && !bind(file, (const void *)&address, sizeof address)
        && !setenv("NOTIFY_SOCKET", address.sun_path, 1) && !setenv("WATCHDOG_USEC", limit, 1)) k->notified = file;
    else if (file >= 0) close(file); /* which leaves errno alone */
    return k->notified >= 0;
}

/* In the child: become the loop, which ends with its supervisor and holds `lock`. `report` takes why it cannot be. */
__attribute__((noreturn)) static void become_loop(const struct keeper *k, pid_t parent, int lock, int errors,
                                                  int report)
{
    sigset_t none;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != parent) _exit(1); /* it ended before the kernel knew */
    sigemptyset(&none);
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (nothing >= 0 && dup2(nothing, 0) == 0 && dup2(errors, 2) == 2 && fcntl(lock, F_DUPFD, HIGH) >= 0
        && !fcntl(k->folder, F_SETFD, 0) && !sigprocmask(SIG_SETMASK, &none, 0)) execvp(k->command[0], k->command);
    const int failed = errno;
    dprintf(errors, "policy-agent: %s: %s\n", k->command[0], strerror(failed));
    write_all(report, (const char *)&failed, sizeof failed);
    _exit(1);
}

/* Start the loop; 0, or why it could not be started. It writes its log to a pipe, since one that writes to a full disk
 * itself ends by that. */
static int start_loop(struct keeper *k)
{
    enum { LOCK, READ_LOG, LOG, READ_REPORT, REPORT, COUNT };
    int file[COUNT] = {-1, -1, -1, -1, -1}, failed = 0;
    char old[64];
    const pid_t parent = getpid();
    k->log_size = 0;
    keep_file(k, "log", k->log, 0); /* of this start alone */
    file[LOCK] = lock_file(k, "loop");
    const int is_ready = file[LOCK] >= 0 && open_notified(k)
                         && !pipe2(file + READ_LOG, O_CLOEXEC) && !pipe2(file + READ_REPORT, O_CLOEXEC)
                         && !fcntl(file[READ_LOG], F_SETFL, O_NONBLOCK);
    if (is_ready) while (recv(k->notified, old, sizeof old, 0) >= 0) {} /* of the loop before */
    const pid_t child = is_ready ? fork() : -1;
    if (!child) become_loop(k, parent, file[LOCK], file[LOG], file[REPORT]);
    if (child < 0) failed = errno;
    else {
        close(file[REPORT]), file[REPORT] = -1;
        while (read(file[READ_REPORT], &failed, sizeof failed) < 0 && errno == EINTR) {}
        k->child = child, k->output = file[READ_LOG], file[READ_LOG] = -1;
    }
    for (int i = 0; i < COUNT; i++) if (file[i] >= 0) close(file[i]);
    return failed;
}

/* ---- the loop's life --------------------------------------------------------------------------------------------- */

/* Wait until something can be read or the time is over. */
static void wait_for(struct keeper *k, struct pollfd *watched, int n, int milliseconds)
{
    struct signalfd_siginfo signal;
    const int count = poll(watched, (nfds_t)n, milliseconds);
    while (read(k->signals, &signal, sizeof signal) == sizeof signal)
        k->has_to_end |= signal.ssi_signo != SIGCHLD;
    if (count <= 0) for (int i = 0; i < n; i++) watched[i].revents = 0;
}

static int has_loop_ended(struct keeper *k)
{
    int status;
    if (waitpid(k->child, &status, WNOHANG) != k->child) return 0;
    k->status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return 1;
}

/* Bytes of memory that the loop takes; 0 where the kernel does not say. */
static double measure_loop(const struct keeper *k)
{
    char path[64], sizes[128] = "";
    snprintf(path, sizeof path, "/proc/%d/statm", (int)k->child);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0.0;
    const ssize_t n = read(file, sizes, sizeof sizes - 1);
    close(file);
    const char *const second = n > 0 ? strchr(sizes, ' ') : 0;
    return second ? (double)strtoll(second, 0, 10) * getpagesize() : 0.0;
}

/* Hear the loop's heartbeat and its log until it has ended, and say why. */
static void attend(struct keeper *k)
{
    enum { SIGNALS, NOTIFIED, OUTPUT, COUNT };
    struct pollfd watched[COUNT] = {{k->signals, POLLIN, 0}, {k->notified, POLLIN, 0}, {k->output, POLLIN, 0}};
    const int look_ms = k->watchdog_s < 4e-3 * LOOK_MS ? 1 + (int)(250 * k->watchdog_s) : LOOK_MS;
    int64_t alive_ns = now_ns(), stop_ns = 0; /* by when it has to end */
    double allowed_s = START_S;
    *k->why = 0;
    for (; !has_loop_ended(k); wait_for(k, watched, COUNT, look_ms)) {
        if (watched[OUTPUT].revents && !read_log(k)) watched[OUTPUT].fd = -1;
        if (watched[NOTIFIED].revents) {
            char message[4096];
            const ssize_t n = recv(k->notified, message, sizeof message, 0);
            if (n > 0 && memmem(message, (size_t)n, "READY=1", 7)) allowed_s = k->watchdog_s, write_state(k, "active");
            alive_ns = now_ns();
        }
        const int64_t now = now_ns();
        int is_over = 0;
        if (k->has_to_end) {
            if (!stop_ns) kill(k->child, SIGTERM), stop_ns = now + STOP_S * SECOND_NS;
            is_over = now > stop_ns;
        } else if ((double)(now - alive_ns) > 1e9 * allowed_s && poll(watched + NOTIFIED, 1, 0) < 1) {
            /* Where the disk held us up meanwhile, heartbeats wait to be heard. */
            is_over = 1, snprintf(k->why, sizeof k->why, "no heartbeat for %g s", allowed_s);
        } else if (measure_loop(k) > k->memory_bytes) {
            is_over = 1, snprintf(k->why, sizeof k->why, "more than %.0f bytes resident", k->memory_bytes);
        }
        if (is_over) kill(k->child, SIGKILL); /* one that is stopped or hangs takes no other signal */
    }
    read_log(k);
    if (!*k->why) snprintf(k->why, sizeof k->why, "it ended with status %d", k->status);
}

/* Whether it was started so often of late that starting it again is of no use. */
static int are_starts_too_many(const struct keeper *k, int64_t now)
{
    int count = 0;
    for (int i = 0; i < BURST; i++) count += k->started_ns[i] && now - k->started_ns[i] < WITHIN_S * SECOND_NS;
    return count == BURST;
}

/* Start the loop and attend to it until it has ended; whether it did end, and was not kept from starting. */
static int run_loop_once(struct keeper *k)
{
    const int failed = start_loop(k);
    if (!failed) write_state(k, "starting"), attend(k);
    else {
        snprintf(k->why, sizeof k->why, "it could not be started: %s", strerror(failed));
        if (k->child) waitpid(k->child, 0, 0), read_log(k);
    }
    if (k->output >= 0) close(k->output);
    k->output = -1, k->child = 0;
    return !failed || failed == ENOENT; /* memory gets free, a disk comes back; a command that is not there does not */
}

/* Leave the loop alone for a moment, unless a signal comes. */
static void pause_starts(struct keeper *k)
{
    struct pollfd signals = {k->signals, POLLIN, 0};
    const int64_t end = now_ns() + PAUSE_MS * 1000000ll;
    for (int64_t left; !k->has_to_end && (left = end - now_ns()) > 0;)
        wait_for(k, &signals, 1, 1 + (int)(left / 1000000));
}

/* Whether starting again would not help: ended, refused, wrong usage, --on-miss stop. */
static int is_final(int status) { return status == 0 || status == 1 || status == 2 || status == 75; }

/* Until a signal ends it, or starting again is of no use; the exit status. */
static int keep_running(struct keeper *k)
{
    for (int next = 0; !k->has_to_end;) {
        const int64_t now = now_ns();
        if (are_starts_too_many(k, now)) {
            char last[sizeof k->why];
            memcpy(last, k->why, sizeof last);
            snprintf(k->why, sizeof k->why, "it ended %d times within %d s, the last time: %.160s", BURST, WITHIN_S,
                     last);
            return write_state(k, "failed"), 1;
        }
        k->status = -1;
        if (run_loop_once(k)) k->started_ns[next] = now, next = (next + 1) % BURST;
        if (k->has_to_end) break;
        if (is_final(k->status)) return write_state(k, "failed"), k->status;
        k->restarts++;
        write_state(k, "restarting");
        pause_starts(k);
    }
    return write_state(k, "stopped"), 0;
}

/* ---- arguments ------------------------------------------------------------------------------------------------- */

/* The number behind an option's name, where the word is that option and its number one from `least` to `most`. */
static int read_limit(const char *word, const char *name, double least, double most, double *to)
{
    const size_t n = strlen(name);
    if (strncmp(word, name, n) || strspn(word + n, "0123456789.") != strlen(word + n)) return 0;
    char *end;
    *to = strtod(word + n, &end);
    return !*end && *to >= least && *to <= most;
}

static int read_words(struct keeper *k, int count, char *const *words)
{
    if (count < 6 || !*words[0]) return 0;
    const size_t n = strlen(k->policy = words[1]);
    int i = 2, is_good = n > 0 && n <= MOST_NAME && !strchr(k->policy, '/');
    for (; i < count && strcmp("--", words[i]); i++)
        is_good &= read_limit(words[i], "--watchdog=", 1e-3, 1e6, &k->watchdog_s)
                   || read_limit(words[i], "--memory=", 1.0, 1e15, &k->memory_bytes);
    k->command = words + i + 1;
    return is_good && i + 1 < count && k->watchdog_s > 0.0 && k->memory_bytes > 0.0;
}

/* Signals are read from a descriptor, whatever the parent process did with them. */
static int open_signals(void)
{
    static const int NUMBERS[] = {SIGTERM, SIGINT, SIGCHLD};
    sigset_t handled;
    sigemptyset(&handled);
    for (int i = 0; i < COUNT_OF(NUMBERS); i++) sigaddset(&handled, NUMBERS[i]);
    sigprocmask(SIG_BLOCK, &handled, 0);
    for (int i = 0; i < COUNT_OF(NUMBERS); i++) signal(NUMBERS[i], SIG_DFL);
    return signalfd(-1, &handled, SFD_NONBLOCK | SFD_CLOEXEC);
}

static int refuse_to_run(const char *what)
{
    fprintf(stderr, "policy-agent: %s: %s\n", what, strerror(errno));
    return 1;
}

int supervise(int count, char *const *words)
{
    struct keeper k = {.state_file = -1, .notified = -1, .output = -1};
    if (!read_words(&k, count, words)) return fputs("usage: " SUPERVISE_USAGE "\n", stderr), 2;
    for (int i = 0; i < 3; i++) if (fcntl(i, F_GETFD) < 0) open("/dev/null", O_RDWR); /* the lowest: i */
    for (int i = 3; i < INHERITED; i++) close(i); /* others' locks and sessions end without us */
    k.folder = open(words[0], O_PATH | O_DIRECTORY | O_CLOEXEC); /* as 3: verify.sh opens 5 to 9 */
    if (k.folder < 0) return refuse_to_run(words[0]);
    if (lock_file(&k, "lock") < 0) return errno == EWOULDBLOCK ? 0 : refuse_to_run("its lock");
    const int lock = open_file(&k, name_file(&k, "lock"), O_WRONLY | O_TRUNC);
    if (lock >= 0) dprintf(lock, "%d", (int)getpid()), close(lock);
    setsid(); /* who started this may end, and with it all of its group */
    k.signals = open_signals();
    if (k.signals < 0) return refuse_to_run("its signals");
    return keep_running(&k);
}
