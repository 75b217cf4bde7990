/* A policy in a robot's loop: it decides at a fixed rate, or as observations come, behind a Unix SEQPACKET socket, and
 * counts how punctual it is. What decides is a function of the caller's: the engine in policy-agent, any runtime in a
 * Python process (device/agent/loop/service.py). The frames are those of device/agent/loop/frames.py. */
#ifndef QUARL_LOOP_LIBRARY_H
#define QUARL_LOOP_LIBRARY_H
#include <stddef.h>
#include <stdint.h>

#define EXPORTED __attribute__((visibility("default")))

struct loop_options {               /* as device/agent/loop/options.py has them; 0 or "" where they are not given */
    const char *socket, *precision, *runtime, *release, *fallback;
    double rate, deadline_ms, stale_ms, hold_for_ms;
    int pace, on_miss, priority, core, spin_us, threads; /* core: -1 for any */
};

struct loop_policy {                /* what is served; everything that it points to outlives loop_serve */
    const char *name, *served;      /* of the policy; e.g. "int8 in native", for people */
    const char *loaded;             /* the protocol's LOADED, a JSON object */
    const char *help, *hello;       /* members of those replies, without braces */
    uint32_t observation_size, period_size, output_size, state_size; /* float32 values; of one period, as it is sent */
    int is_discrete, first;         /* one choice among output_size actions, the number of the first of them */
    int are_whole;                  /* the action's elements are whole numbers within the bounds: several choices */
    int locks_all;                  /* memory that was never touched is made resident, too */
    uint64_t period_ns;             /* of control */
    const float *golden;            /* an observation to rehearse on */
    const float *fallback;          /* the policy's own: [output_size], or [1] where discrete; NULL: none */
    const double *bounds;           /* of the action's elements: low [output_size], high [output_size]; or NULL */
    void *context;
    /* One decision: flags of frames.py, 0 for an action; negative: the policy cannot be executed any more.
     * values: an observation, or where is_period the values of one period, of which an episode `starts`.
     * outputs: float[output_size] to be filled; *action: of a discrete policy its number. */
    int (*decide)(void *context, const float *values, int is_period, int starts, float *outputs, int32_t *action);
    /* The reply to an "act" of one observation into reply[room]; its size. */
    size_t (*answer)(void *context, char *line, size_t size, char *reply, size_t room);
};

/* Read the words behind "loop", each --name=value or --name value; 0 where one is wrong, and `why` is a sentence then.
 * *help: one is --help. */
EXPORTED int loop_read_options(int count, char *const *words, struct loop_options *, int *help, char *why, size_t room);
/* What --help prints. */
EXPORTED const char *loop_usage(void);
/* Serve until a signal, or until --on-miss stop; the exit status. Errors are printed to stderr. */
EXPORTED int loop_serve(const struct loop_policy *, const struct loop_options *);
/* Refuse to serve for a reason that the caller found: `message` and what to type go to stderr; the exit status. */
int loop_refuse(const char *message, const char *next);

/* `decide` by a native engine that is another library: context is a struct loop_engine. */
struct loop_engine {
    int (*decide)(void *engine, const float *observation, float *outputs);
    int (*has_moved)(const void *engine, const float *observation);
    void *engine;
    int is_discrete, first;
};
EXPORTED int loop_decide_native(void *context, const float *values, int is_period, int starts, float *outputs,
                                int32_t *action);
#endif
