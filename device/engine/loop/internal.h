/* What the files of the loop share. */
#ifndef QUARL_LOOP_INTERNAL_H
#define QUARL_LOOP_INTERNAL_H
#include <poll.h>
#include <sys/resource.h>
#include <sys/un.h>

#include "agent/clock.h"
#include "agent/number.h"
#include "agent/replies.h"
#include "constants.h"
#include "loop.h"

_Static_assert(sizeof(struct header) == 48 && sizeof(struct description) == 72, "a frame has no gaps");

enum { NOBODY = -1 };
enum { EXIT_REFUSED = 1, EXIT_FAILED = 70, EXIT_MISSED = 75 }; /* 1: starting it again does not help */

/* Connections: a packet fits into a socket's usual buffer, 212,992 bytes with the kernel's own share. */
enum { LARGEST_FRAME = 200000, ECHO_BYTES = 65536, BACKLOG = 64 };
/* Two places more than anybody may keep: for a controller, and for a request that is answered and ends. */
enum { MOST_CONNECTIONS = 8, RESERVED_CONNECTIONS = 2, PLACES = MOST_CONNECTIONS + RESERVED_CONNECTIONS };
/* Packets of the controller, and of each other, that are read in a period; a kernel's buffer holds some 270 small
 * ones. */
enum { MOST_PACKETS = 512, MOST_OF_OTHERS = 8 };
/* A longer request is refused unread: a base, and an addition for each value of one observation. */
enum { REQUEST_BYTES = 512, BYTES_PER_VALUE = 32, REPLY_ROOM = 1 << 18 };
/* What one step for others may take: a packet, a connection, a refusal. */
enum { STEP_NS = 20000 };
/* Times: a new connection says what it wants within; a request that never finds time is refused after. */
#define GREETING_NS 5000000000ll
#define RESERVED_GREETING_NS 250000000ll
#define PATIENCE_NS 1000000000ll
#define EASING_NS 100000000ll
#define USUAL_HEARTBEAT_NS 1000000000ll
/* Periods after which an observation is stale (one that came just after a tick is a period old at the next, and one
 * more may be lost), and for which an action is held, where nothing else is named. */
#define STALE_PERIODS 2.5
enum { HOLD_PERIODS = 5 };
#define MIN_PERIOD_NS 500000ll
#define MAX_PERIOD_NS 100000000000ll
/* Each power of two has 2^SUB_BITS buckets; what is longer than 18 minutes is counted as that. */
enum { SUB_BITS = 5, BUCKETS = (41 - SUB_BITS) << SUB_BITS };
#define LARGEST_DURATION ((1ll << 40) - 1)

enum { TIME_WOKE_LATE, TIME_DECIDED, TIME_RUNTIME, TIME_ANSWERED, TIME_SENT_LATE, TIME_AGE, TIME_JITTER, TIME_COUNT };
enum { LOOP_OPERATION_LOOP, LOOP_OPERATION_HELP, LOOP_OPERATION_HELLO, LOOP_OPERATION_ACT, LOOP_OPERATION_COUNT };

static inline size_t frame_bytes(uint32_t count) { return sizeof(struct header) + 4 * (size_t)count; }

/* ---- options.c ---- */
/* Numbers with commas between them: how many there are, 0 where it is no such list; only those that fit are kept. */
int read_numbers(const char *s, double *to, uint32_t room);

/* ---- decide.c: from the newest observation frame to an action frame, or to the fallback ---- */
struct frame { struct header head; float values[]; };

struct decider {
    const struct loop_policy *policy;
    uint64_t release;               /* as frames carry it */
    int64_t stale_ns;               /* age from which an observation is stale */
    const float *values;            /* of the newest observation */
    int is_period, is_fresh, starts; /* of one period; not decided on yet; of an episode that was not begun yet */
    uint64_t sequence;              /* of the newest observation, and when it was made: 0 before the first */
    int64_t observed_ns, runtime_ns; /* the runtime's last call; 0 where the last decision was made without it */
    int taken_flags, flags, has_failed;
    struct { int32_t action; const float *values; } decided; /* no values: what the frame has, once more */
    int32_t fallback_action;
    float *fallback, *outputs;
    struct frame *frame;            /* whole after finish() */
};

int take(struct decider *, const struct frame *, size_t bytes);
int decide(struct decider *, int64_t now);
int rehearse(struct decider *);
int fall_back(struct decider *, int flags);
int hold(struct decider *, int flags);
void finish(struct decider *, int64_t sent_ns, int64_t missed);

/* ---- connections.c: who is connected, which of them is the controller, and what they have sent ---- */
struct client {
    int file;                       /* or NOBODY */
    int has_greeted;
    int64_t since_ns, asked_ns;     /* connected; its waiting request came */
    size_t size;                    /* of its request that waits for an answer; 0: none */
    char *text;                     /* the request: room for one of the longest size, and a 0 */
};

struct connections {
    int listener, signals;
    struct decider *decider;
    struct description hello;       /* what a controller learns */
    struct client client[PLACES];
    int controller;                 /* where actions go: an index, or NOBODY */
    int next;                       /* whose turn it is to be read and answered */
    struct frame *spare, *inbox[2];
    size_t room, longest;           /* of an inbox; of a request */
    int64_t unread, malformed;      /* packets that nobody read, or were too many; that were no frame of it */
};

/* Listen at a path; the listener, or a negative error number: -EADDRINUSE, another loop listens there. */
int listen_at(const char *path);
void open_connections(struct connections *, int listener, int signals, struct decider *);
int send_to(struct connections *, int who, const void *packet, size_t n);
void drop(struct connections *, int who);
/* Read one packet: 1 an observation, 0 another; -1 when there is none, or the client is gone. */
int read_one(struct connections *, int who);
/* Read all that the controller has sent; the newest observation is the decider's. */
void read_controller(struct connections *);
int has_place(const struct connections *);
/* Let in one who waits; 0 where nobody does, or no place is left. */
int accept_one(struct connections *);
/* End what has not said within its time what it wants. */
void cut_silent(struct connections *, int64_t now);
void refuse_client(struct connections *, int who, const char *code, const char *message, const char *next);
int is_reserved(int who);

/* ---- punctuality.c: times in ns and counts, since the loop began or since they were read with a reset ---- */
struct histogram {
    int64_t count, largest;         /* the largest exactly */
    int first, end;                 /* buckets outside are 0, and their memory need not be there */
    uint64_t bucket[BUCKETS];
};

struct punctuality {
    /* woke_late: from a tick's due time to the loop's being awake. decided: from the observation's being read to the
     * action's being ready; runtime: the runtime's own call within that. answered: from the observation's being read to
     * the action's being written. sent_late: from a tick's due time to its action's being written. age: of the
     * observation when its action leaves. jitter: between an action's distance from the one before and the period. */
    struct histogram time[TIME_COUNT];
    /* Due times that were served; that passed while an earlier one was served. Actions that were ready after their
     * deadline; of those, the ones in whose place the fallback was sent because the one before had been held too
     * long. */
    int64_t ticks, skipped, late, hold_expired, missed_ever;
    int64_t since_ns;
    uint64_t flags[256];            /* how many actions had them */
    struct rusage usage;
};

void add_duration(struct histogram *, int64_t ns);
void reset_punctuality(struct punctuality *);
void count_missed(struct punctuality *, int64_t late, int64_t skipped);
void put_punctuality(struct text *, const struct punctuality *);

/* ---- real_time.c: what keeps a loop punctual on Linux ---- */
struct grant { int is_granted; char name[32], reason[192]; };
struct grants { int count, all; struct grant one[3]; char advice[512]; }; /* advice: lines that grant the rest */

/* Request a priority from 1 to 99, or 0; a core, or -1 for any; locked memory. */
void request_real_time(struct grants *, int priority, int core, int locks_all);
void put_grants(struct text *, const struct grants *);

/* ---- supervisor.c: systemd's notification protocol; any supervisor that sets NOTIFY_SOCKET hears it ---- */
struct supervisor {
    int file, is_there;
    struct sockaddr_un address;
    unsigned address_size;
    int64_t heartbeat_ns;           /* how often "alive" is due: a third of the supervisor's limit */
};

void open_supervisor(struct supervisor *);
void notify(const struct supervisor *, const char *message, const char *status);

/* ---- pacing.c: absolute deadlines, one decision for each, and what is done when one is missed ---- */
struct timing { int64_t period_ns, deadline_ns, stale_ns, hold_ns, spin_ns; int pace, on_miss; };

struct loop {
    const struct loop_policy *policy;
    const struct loop_options *options;
    struct timing timing;
    struct decider decider;
    struct connections connections;
    struct supervisor supervisor;
    struct grants grants;
    struct punctuality count;
    int timer;
    int64_t sent_ns, alive_ns, made_ns; /* made_ns: of the action that would be held */
    int64_t missed_ns, forced_ns;   /* a deadline was missed last; others were last given time that there was not */
    int64_t cost_ns[LOOP_OPERATION_COUNT]; /* what answering took lately */
    int64_t eased_ns[LOOP_OPERATION_COUNT]; /* when that was last lowered for want of time */
    char *reply;
    int has_skipped, has_ended, is_missed; /* is_missed: it ended for --on-miss stop */
    char why[96];                   /* it ended */
};

void run_loop(struct loop *);

/* ---- requests.c: JSON amid the loop ---- */
/* Answer who waits, one request each, as far as there is time until `until`. */
void answer_waiting(struct loop *, int64_t until);
/* Answer each kind of request once, for nobody: the first of everything is slow. */
void rehearse_requests(struct loop *);
#endif
