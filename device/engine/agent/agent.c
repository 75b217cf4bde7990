/* policy-agent: decides, measures and answers as device/agent does, one JSON object a line, without Python and
 * without anything beside it: `policy-agent policy.pack`. The protocol is that of device/agent/protocol.py, without
 * episodes, period and several threads; its errors have the same codes. Numbers, names and frames are those of
 * constants.h, which device/agent/constants.py prints. `policy-agent policy.pack loop` serves in a
 * robot's loop (../loop), `policy-agent supervise` keeps such a loop running, `policy-agent ask` asks it. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "../loop/loop.h"
#include "ask.h"
#include "clock.h"
#include "device.h"
#include "number.h"
#include "operations.h"
#include "pack.h"
#include "supervise.h"

enum { USAGE_STATUS = 2, REFUSED_STATUS = 1 };

struct agent agent;

int write_all(int file, const char *from, size_t n)
{
    while (n) {
        const ssize_t done = write(file, from, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return 0;
        from += done, n -= (size_t)done;
    }
    return 1;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* The members of hello, from the comma behind its head on. */
static void put_hello(struct text *t)
{
    put(t, "\"protocol\":" STRINGIFY(PROTOCOL_VERSION) ",\"agent\":{\"version\":\"1 (static)\",");
    print(t, "\"pid\":%d,\"ready_ns\":", (int)getpid());
    if (agent.ready_ns) put_signed(t, agent.ready_ns - agent.began_ns);
    else put(t, "null");
    put(t, "},\"device\":"), put_device(t);
    put(t, ",\"runtimes\":{\"native\":\"" ENGINE_VERSION "\"},\"preferred_runtime\":\"native\",\"simulator\":false");
    put(t, ",\"bundle\":"), put_section(t, BUNDLE), put(t, ",\"bundle_error\":null,\"loaded\":");
    if (agent.engine) put_section(t, LOADED);
    else put(t, "null");
}

static int answer_hello(struct text *t, const struct request *r)
{
    put_head(t, r, 1);
    put_char(t, ','), put_hello(t), put(t, "}\n");
    return 1;
}

static int answer_help(struct text *t, const struct request *r)
{
    put_head(t, r, 1);
    put_char(t, ','), put_section(t, HELP), put(t, "}\n");
    return 1;
}

static int answer_bye(struct text *t, const struct request *r)
{
    agent.has_ended = 1;
    put_head(t, r, 1);
    print(t, ",\"decisions\":%lld}\n", (long long)agent.decisions);
    return 1;
}

static int answer_episodes(struct text *t, const struct request *r)
{
    put(&fault, "this agent has no simulator.");
    return refuse(t, r, CODE_UNAVAILABLE,
                  "Let the host simulate (bench/success.py --on loop), or deploy the agent in Python.");
}

static const struct operation {
    const char *name, *fields[8];
    int (*answer)(struct text *, const struct request *);
} OPERATIONS[] = {
#define OPERATION(name, ...) {#name, {__VA_ARGS__}, answer_##name},
    EACH_OPERATION(OPERATION)
};

int answer(struct text *t, char *begin, char *end)
{
    static struct request nested[2]; /* latency answers lines meanwhile */
    static int depth;
    struct request *r = &nested[depth];
    if (!read_request(t, r, begin, end)) return 0;
    const struct operation *o = 0;
    for (int i = 0; i < OPERATION_COUNT; i++) if (is_string(r->op, OPERATIONS[i].name)) o = &OPERATIONS[i];
    if (!o) {
        if (r->op.kind == MISSING) put(&fault, "the request has no \"op\"");
        else put(&fault, "op "), put_short(&fault, r->op), put(&fault, " is not known");
        put(&fault, "; there are " OPERATION_TEXT ".");
        return refuse(t, r, CODE_UNKNOWN_OP, "Type {\"op\": \"help\"} for examples.");
    }
    if (depth && o->answer != answer_act) {
        put(&fault, "a line that is timed must be an act.");
        return refuse(t, r, CODE_BAD_REQUEST, "Deploy the policy again.");
    }
    if (!check_fields(t, r, o->fields)) return 0;
    depth++;
    const int is_answered = o->answer(t, r);
    depth--;
    if (t->at < t->end) return is_answered;
    begin_fault();
    put(&fault, "the reply would be longer than this agent holds.");
    return refuse(t, r, CODE_LINE_TOO_LONG, "Send fewer observations in one request.");
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static char reply[REPLY_ROOM];

/* Answer a line, which may be blank; 0 where nobody takes the reply. One byte behind it may be written to. */
static int answer_line(char *begin, char *end, int is_too_long)
{
    struct text t = text_of(reply, sizeof reply);
    *end = '\n';
    if (is_too_long) {
        static const struct request none;
        begin_fault();
        put(&fault, "the line is longer than " STRINGIFY(MAX_LINE) " bytes.");
        refuse(&t, &none, CODE_LINE_TOO_LONG, "Send fewer observations in one request.");
    } else if (skip_blanks(begin, end) != end) answer(&t, begin, end);
    return write_all(1, reply, text_size(&t));
}

static void serve_lines(void)
{
    static char room[MAX_LINE + LINE_SLACK];
    size_t from = 0, have = 0;      /* what was read and not answered: room[from .. from + have] */
    int is_too_long = 0;            /* the rest of such a line is skipped, and answered at its end */
    agent.ready_ns = now_ns();
    for (size_t looked = 0; !agent.has_ended;) {
        char *const begin = room + from, *const end = memchr(begin + looked, '\n', have - looked);
        if (end) {
            if (!answer_line(begin, end, is_too_long)) return;
            is_too_long = 0, looked = 0;
            have -= (size_t)(end + 1 - begin), from += (size_t)(end + 1 - begin);
            continue;
        }
        looked = have;
        if (have == MAX_LINE) is_too_long = 1, have = looked = from = 0;
        else if (from + have == MAX_LINE || !have) memmove(room, begin, have), from = 0;
        const ssize_t more = read(0, room + from + have, MAX_LINE - from - have);
        if (more < 0 && errno == EINTR) continue;
        if (more <= 0) {            /* a last line without an end is one, too */
            if (have || is_too_long) answer_line(room + from, room + from + have, is_too_long);
            return;
        }
        have += (size_t)more;
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

static size_t answer_in_loop(void *context, char *line, size_t size, char *to, size_t room)
{
    struct text t = text_of(to, room);
    (void)context;
    answer(&t, line, line + size);
    return text_size(&t);
}

/* Load the artifact by a request, as any other would; its golden vectors are checked. */
static int load_for_loop(const struct loop_options *o)
{
    static char room[256];
    struct text line = text_of(room, sizeof room), t = text_of(reply, sizeof reply);
    put(&line, "{\"op\":\"load\",\"precision\":\"");
    if (o->precision) put(&line, o->precision);
    else put_section(&line, PRECISION);
    print(&line, "\",\"runtime\":\"%s\",\"threads\":%d}", o->runtime ? o->runtime : "native", o->threads);
    return answer(&t, room, line.at);
}

/* One decision of several choices: their numbers are the action frame's values. */
static int decide_choices(void *context, const float *values, int is_period, int starts, float *outputs,
                          int32_t *action)
{
    (void)context, (void)is_period, (void)starts, (void)action;
    native_decide(agent.engine, values, agent.outputs);
    if (!choose(agent.outputs, agent.numbers)) return NON_FINITE;
    for (uint32_t i = 0; i < sizes->choices; i++) outputs[i] = (float)agent.numbers[i];
    return native_has_moved(agent.engine, values) ? UNTRAINED : 0;
}

/* What the loop is given, of the pack and the loaded artifact. */
static struct loop_policy describe_policy(void)
{
    static struct loop_engine engine;
    const struct choice *choices = section_of(CHOICES);
    const int is_discrete = sizes->choices == 1, are_several = sizes->choices > 1;
    struct loop_policy p = {
        .name = copy_section(POLICY), .loaded = copy_section(LOADED), .help = copy_section(HELP),
        .observation_size = sizes->observation, .period_size = sizes->observation,
        .output_size = are_several ? sizes->choices : sizes->outputs, .is_discrete = is_discrete,
        .first = is_discrete ? choices->start : 0, .are_whole = are_several, .golden = section_of(OBSERVATIONS),
        .fallback = section_size(FALLBACK_ACTION) ? section_of(FALLBACK_ACTION) : 0,
        .bounds = section_size(BOUNDS) ? section_of(BOUNDS) : 0, .answer = answer_in_loop,
    };
    struct text t = text_of(reply, sizeof reply - 1);
    put_hello(&t), *t.at = 0, p.hello = strdup(reply);
    t = text_of(reply, sizeof reply - 1);
    put_section(&t, PRECISION), put(&t, " in native"), *t.at = 0, p.served = strdup(reply);
    memcpy(&p.period_ns, section_of(PERIOD), sizeof p.period_ns);
    engine = (struct loop_engine){(int (*)(void *, const float *, float *))native_decide,
                                  (int (*)(const void *, const float *))native_has_moved, agent.engine, is_discrete,
                                  p.first};
    p.context = &engine, p.decide = loop_decide_native;
    if (!are_several) return p;
    double *const bounds = calloc(2 * (size_t)sizes->choices, sizeof *bounds);
    for (uint32_t i = 0; i < sizes->choices; i++) {
        bounds[i] = choices[i].start;
        bounds[sizes->choices + i] = choices[i].start + choices[i].count - 1;
    }
    p.bounds = bounds, p.decide = decide_choices;
    return p;
}

static int serve_loop(int count, char *const *words)
{
    static struct loop_policy policy;
    struct loop_options options;
    char why[512];
    int is_help;
    const int is_good = loop_read_options(count, words, &options, &is_help, why, sizeof why);
    if (!is_good || is_help) {
        fputs(loop_usage(), is_good ? stdout : stderr);
        if (!is_good) fprintf(stderr, "policy-agent: error: %s\n", why);
        return is_good ? 0 : USAGE_STATUS;
    }
    if (!load_for_loop(&options)) {
        *fault.at = 0;
        return loop_refuse(fault.begin, "Deploy the policy again, or deploy the agent in Python.");
    }
    policy = describe_policy();
    return loop_serve(&policy, &options);
}

static void end_at_once(int number)
{
    (void)number;
    _exit(0);
}

int main(int count, char **words)
{
    static const char USAGE[] =
        "policy-agent policy.pack [--threads=1]: one JSON object a line. Try {\"op\": \"help\"}\n"
        "policy-agent policy.pack --passed=FILE ...: fewer golden vectors where FILE says that all passed before\n"
        "policy-agent policy.pack loop --help: in a robot's loop\n"
        SUPERVISE_USAGE ": keeps a loop running\n"
        ASK_USAGE ": prints a loop's reply\n";
    if (count >= 2 && !strcmp("supervise", words[1])) return supervise(count - 2, words + 2);
    if (count >= 2 && !strcmp("ask", words[1])) return ask(count - 2, words + 2);
    agent.began_ns = now_ns();
    if (count >= 3 && !strncmp("--passed=", words[2], 9)) {
        agent.passed = words[2] + 9;
        words[2] = words[1], words++, count--;
    }
    const int in_loop = count >= 3 && !strcmp("loop", words[2]);
    int is_known = count >= 2;
    for (int i = 2; i < count && !in_loop; i++) is_known &= !strcmp("--threads=1", words[i]);
    if (!is_known) return fputs(USAGE, stderr), USAGE_STATUS;
    const char *const why = open_pack(words[1]);
    if (why) return fprintf(stderr, "policy-agent: %s: %s\n", words[1], why), REFUSED_STATUS;
    agent.outputs = calloc(sizes->outputs, sizeof(float));
    agent.numbers = calloc(sizes->choices + 1, sizeof(int32_t));
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); /* a page of 2 MB for the few kB that a policy touches */
    agent.baseline_bytes = read_resident().now;
    signal(SIGPIPE, SIG_IGN);
    if (in_loop) return serve_loop(count - 3, words + 3);
    signal(SIGTERM, end_at_once);
    serve_lines();
    return 0;
}
