/* The agent's operations: each answers a request into a text; 0 where it refuses. */
#ifndef AGENT_OPERATIONS_H
#define AGENT_OPERATIONS_H
#include "../engine.h"
#include "replies.h"

#define MAX_LINE 2097152           /* bytes of a request */
enum { REPLY_ROOM = 2 << 20 };

struct agent {
    struct native *engine;          /* of the loaded artifact; NULL before */
    float *outputs;
    int32_t *numbers;               /* of the chosen actions */
    int64_t began_ns, ready_ns;     /* the process, and its first request; 0 before that */
    int64_t decisions, baseline_bytes;
    int has_ended;
    const char *passed;             /* the file of what passed all golden vectors; NULL: all are checked at each load */
};
extern struct agent agent;

/* One request line, one reply line; 0 where it is refused. Behind the line LINE_SLACK bytes may be read. */
int answer(struct text *, char *begin, char *end);
int answer_act(struct text *, const struct request *);
int answer_load(struct text *, const struct request *);
int answer_latency(struct text *, const struct request *);
int answer_memory(struct text *, const struct request *);
/* The actions that outputs choose: sizes->choices numbers; 0 where an output is not finite. */
int choose(const float *outputs, int32_t *numbers);
int write_all(int file, const char *from, size_t n);
#endif
