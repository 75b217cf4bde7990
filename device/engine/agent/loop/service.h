/* A policy served in a robot's loop, as device/agent/loop/service.py serves it: everything is verified and prepared
 * first, then the loop turns until it is ended. A part of agent.c, whose requests and replies these are. */
#ifndef AGENT_LOOP_SERVICE_H
#define AGENT_LOOP_SERVICE_H
#include "listening.h"
#include "options.h"
#include "pacing.h"
#include "real_time.h"

enum { EXIT_USAGE = 2 };

static struct options options;
static struct decider decider;
static struct connections connections;
static struct notifier notifier;
static struct real_time real_time;
static struct loop loop;
static char title[1024];            /* what serves, how often */

static void put_to(long file, const char *s) { write_all(file, s, length_of(s)); }

__attribute__((noreturn)) static void refuse_to_serve(const char *next)
{
    *fault.at = 0;
    put_to(2, "error: "), put_to(2, fault.begin), put_to(2, *next ? "\n" : ""), put_to(2, next), put_to(2, "\n");
    leave(EXIT_REFUSED);
}

/* A positive number in at most six digits, as %g writes it between 0.001 and a million. */
static void put_rounded(struct text *t, double x)
{
    int places = 0;
    double unit = 1.0;
    while (places < 9 && x * unit < 99999.95) unit *= 10.0, places++;
    uint64_t digits = (uint64_t)(x * unit + 0.5), power = 1;
    for (; places && digits % 10 == 0; places--) digits /= 10;
    for (int i = 0; i < places; i++) power *= 10;
    put_unsigned(t, digits / power);
    if (!places) return;
    put_char(t, '.');
    for (power /= 10; power; power /= 10) put_char(t, (char)('0' + digits / power % 10));
}

/* ---- requests amid the loop -------------------------------------------------------------------------------------- */
static void put_status(struct text *t)
{
    const struct timing *g = &loop.timing;
    const int all = is_all_granted(&real_time);
    char room[512];
    struct text lines = {room, room, room + sizeof room};
    if (!all) put_what_grants_it(&lines);
    put(t, ",\"release\":"), put_word(t, options.release, length_of(options.release));
    put(t, ",\"loaded\":"), put_section(t, LOADED);
    put_count(t, ",\"timing\":{\"period_ns\":", g->period_ns), put_count(t, ",\"deadline_ns\":", g->deadline_ns);
    put_count(t, ",\"stale_ns\":", g->stale_ns), put_count(t, ",\"hold_ns\":", g->hold_ns);
    put_count(t, ",\"spin_ns\":", g->spin_ns);
    put(t, ",\"pace\":\""), put(t, PACE_NAMES[g->pace]), put(t, "\",\"on_miss\":\""), put(t, ON_MISS_NAMES[g->on_miss]);
    put(t, "\"},\"granted\":"), put_granted(t, &real_time);
    put(t, ",\"what_grants_it\":"), put_word(t, room, (size_t)(lines.at - room));
    put(t, connections.controller != NOBODY ? ",\"controller\":true" : ",\"controller\":false");
    put_count(t, ",\"unread\":", connections.unread), put_count(t, ",\"malformed\":", connections.malformed);
    put_count(t, ",\"missed_ever\":", loop.count.missed_ever);
    put(t, ",\"counts\":"), put_punctuality(t, &loop.count);
}

/* Refuse what would keep the loop from its deadlines. */
static void refuse_too_much(struct text *t, const struct request *r, const char *received, const char *allowed)
{
    put(&fault, received), put(&fault, " is not answered within a loop, which a batch would keep from its deadlines; ");
    put(&fault, allowed);
    refuse(t, r, CODE_UNAVAILABLE, "Send one observation a request, or batches to the agent: run-agent.");
}

static int has_several_rows(struct value list)
{
    const char *why, *s = list.kind == LIST ? blank(list.begin + 1, list.end) : "]";
    if (*s == ']') return 0;
    return *blank(behind_value(s, list.end, 0, &why), list.end) != ']';
}

/* Answer a JSON request: of those that the agent has besides the ones that take no longer than a decision or two. */
static struct text answer_in_loop(char *begin, char *end)
{
    static struct request r;
    const size_t longest = REQUEST_BYTES + BYTES_PER_VALUE * (size_t)sizes->observation;
    struct text t = {buffer, buffer, buffer + sizeof buffer};
    r.op = r.id = (struct value){NOTHING, 0, 0};
    fault = (struct text){fault_text, fault_text, fault_text + sizeof fault_text};
    if ((size_t)(end - begin) > longest) { /* unread: to parse 65 kB takes long, too */
        char received[80], allowed[80];
        struct text got = {received, received, received + sizeof received - 1};
        struct text most = {allowed, allowed, allowed + sizeof allowed - 1};
        put(&got, "a request of "), put_unsigned(&got, (uint64_t)(end - begin)), put(&got, " bytes"), *got.at = 0;
        put(&most, "at most "), put_unsigned(&most, longest), put(&most, " bytes, one observation, are."), *most.at = 0;
        refuse_too_much(&t, &r, received, allowed);
        return t;
    }
    const char *why, *s = blank(begin, end), *behind = s < end && *s == '{' ? behind_members(s, end, &r.members, &why) : 0;
    if (behind && blank(behind, end) == end) {
        r.op = member_of(&r.members, "op");
    } else {                        /* the agent says what is wrong with it */
        answer(begin, end, &t);
        return t;
    }
    if (is_word(r.op, "act") && has_several_rows(member_of(&r.members, "observations"))) {
        refuse_too_much(&t, &r, "act with several observations", "one observation is.");
        return t;
    }
    if (!is_one_of(r.op, LOOP_OPERATION_NAMES)) {
        put(&fault, "op ");
        if (r.op.kind == WORD) put_short(&fault, r.op);
        else put(&fault, "null"), r.op.kind = NOTHING;
        put(&fault, " is not answered within a loop; " LOOP_OPERATION_TEXT " are.");
        refuse(&t, &r, CODE_UNKNOWN_OP, "Type {\"op\": \"loop\"} for what was counted.");
        return t;
    }
    if (!is_word(r.op, "loop")) {
        answer(begin, end, &t);
        return t;
    }
    const struct value reset = member_of(&r.members, "reset");
    if (reset.kind != NOTHING && reset.kind != TRUE && reset.kind != FALSE) {
        refuse_field(&t, &r, "reset", reset, "true or false");
        return t;
    }
    put_head(&t, &r, 1);
    put_status(&t), put(&t, "}\n");
    if (reset.kind == TRUE) reset_punctuality(&loop.count);
    return t;
}

/* ---- preparing --------------------------------------------------------------------------------------------------- */
/* The fallback action: the one that is given, or else the policy's own. */
static void choose_fallback(struct decider *d)
{
    static double given[MOST_VALUES];
    const float *own = section_of(pack, FALLBACK_ACTION);
    const double *bounds = pack->section[BOUNDS].size ? section_of(pack, BOUNDS) : 0;
    uint32_t count = pack->section[FALLBACK_ACTION].size / 4;
    int fits;
    if (options.fallback) count = read_numbers(options.fallback, given, MOST_VALUES);
    else for (uint32_t i = 0; i < count; i++) given[i] = (double)own[i];
    if (!count) {
        put(&fault, "policy '"), put_section(&fault, POLICY);
        put(&fault, "' declares no fallback action, and a loop needs one: before the first observation, ");
        put(&fault, "and when one is stale or not finite.");
        refuse_to_serve(d->discrete ? "Name it, for example: --fallback 0" : "Name it, for example: --fallback=0,0,0");
    }
    fits = count == (d->discrete ? 1 : d->output_size);
    if (fits && d->discrete) fits = given[0] >= 0 && given[0] < d->output_size && given[0] == (double)(int32_t)given[0];
    for (uint32_t i = 0; fits && !d->discrete && i < count; i++) {
        fits = given[i] >= -(double)LARGEST && given[i] <= (double)LARGEST;
        /* Of the policy's own, a float32, the bounds are such, too. */
        if (bounds && options.fallback) fits &= given[i] >= bounds[i] && given[i] <= bounds[d->output_size + i];
    }
    if (!fits) {
        put(&fault, "fallback is (");
        for (uint32_t i = 0; i < count && i < 8; i++) put(&fault, i ? ", " : ""), put_double(&fault, given[i]);
        put(&fault, count == 1 ? ",)" : count > 8 ? ", ...)" : ")"), put(&fault, "; allowed are none, or ");
        if (d->discrete) put(&fault, "the index of one of its ");
        put_unsigned(&fault, d->output_size);
        put(&fault, d->discrete ? " actions." : bounds ? " finite numbers within its bounds." : " finite numbers.");
        refuse_to_serve("");
    }
    d->fallback_action = d->discrete ? (int32_t)given[0] : CONTINUOUS;
    for (uint32_t i = 0; i < d->output_size; i++) d->fallback[i] = d->discrete ? 0.0f : (float)given[i];
}

static void choose_timing(struct timing *g)
{
    uint64_t own;
    __builtin_memcpy(&own, section_of(pack, PERIOD), sizeof own);
    const int64_t period = options.rate > 0 ? (int64_t)(1e9 / options.rate + 0.5) : (int64_t)own;
    const int64_t halves = (int64_t)(2 * STALE_PERIODS) * period; /* a half is rounded to the even one */
    const int64_t stale = halves / 2 + (halves & halves / 2 & 1);
    *g = (struct timing){.period_ns = period, .deadline_ns = period, .stale_ns = stale, .hold_ns = HOLD_PERIODS * period};
    if (options.deadline_ms > 0) g->deadline_ns = (int64_t)(1e6 * options.deadline_ms + 0.5);
    if (options.stale_ms > 0) g->stale_ns = (int64_t)(1e6 * options.stale_ms + 0.5);
    if (options.hold_for_ms > 0) g->hold_ns = (int64_t)(1e6 * options.hold_for_ms + 0.5);
    g->spin_ns = 1000ll * options.spin_us, g->pace = options.pace, g->on_miss = options.on_miss;
}

/* Load the artifact by a request, as any other would; its golden vectors are checked. */
static void load_or_refuse(void)
{
    static char request[256];
    struct text t = {request, request, request + sizeof request}, reply = {buffer, buffer, buffer + sizeof buffer};
    put(&t, "{\"op\":\"load\",\"precision\":\"");
    if (options.precision) put(&t, options.precision);
    else put_section(&t, PRECISION);
    put(&t, "\",\"runtime\":\""), put(&t, options.runtime ? options.runtime : "native");
    put(&t, "\",\"threads\":"), put_signed(&t, options.threads), put_char(&t, '}');
    if (!answer(request, t.at, &reply)) refuse_to_serve("Deploy the policy again, or deploy the agent in Python.");
}

static void make_title(void)
{
    struct text t = {title, title, title + sizeof title - 1};
    put_section(&t, POLICY), put_char(&t, ' '), put(&t, *options.release ? options.release : "(no release)");
    put_char(&t, ' '), put_section(&t, PRECISION), put(&t, " in native, ");
    put_rounded(&t, 1e9 / (double)loop.timing.period_ns), put(&t, " decisions a second, ");
    put(&t, options.socket), *t.at = 0;
}

static void prepare(char *const *environment)
{
    fault = (struct text){fault_text, fault_text, fault_text + sizeof fault_text - 1};
    load_or_refuse();
    fault = (struct text){fault_text, fault_text, fault_text + sizeof fault_text - 1};
    const size_t largest = frame_bytes(sizes->observation > sizes->outputs ? sizes->observation : sizes->outputs);
    if (largest > LARGEST_FRAME) {
        put(&fault, "policy '"), put_section(&fault, POLICY), put(&fault, "' has frames of ");
        put_unsigned(&fault, largest), put(&fault, " bytes; a packet may have " STRING(LARGEST_FRAME) ".");
        refuse_to_serve("Use the agent's JSON lines: run-agent.");
    }
    decider.engine = engine(), decider.observation_size = sizes->observation, decider.output_size = sizes->outputs;
    decider.discrete = (int)sizes->discrete, decider.release = release_number(options.release);
    decider.golden = decider.values = section_of(pack, OBSERVATIONS);
    choose_timing(&loop.timing);
    decider.stale_ns = loop.timing.stale_ns;
    choose_fallback(&decider);
    const long signals = open_signals(), listener = listen_at(options.socket);
    if (listener < 0) {
        if (listener == -EADDRINUSE) put(&fault, "another loop listens at "), put(&fault, options.socket);
        else put(&fault, options.socket), put(&fault, ": "), put_error(&fault, listener);
        put_char(&fault, '.');
        refuse_to_serve(listener == -EADDRINUSE ? "Stop that one first, or name another --socket."
                                                : "Name a --socket in a folder of yours.");
    }
    open_connections(&connections, listener, signals, &decider);
    connections.hello = (struct description){
        .head = {.magic = MAGIC, .kind = KIND_DESCRIPTION, .release = decider.release, .action = CONTINUOUS},
        .period_ns = (uint64_t)loop.timing.period_ns, .observation_size = sizes->observation,
        .output_size = sizes->outputs, .brought_size = sizes->observation, .discrete = sizes->discrete,
    };
    open_notifier(&notifier, environment);
    loop.decider = &decider, loop.connections = &connections, loop.notifier = &notifier, loop.answer = answer_in_loop;
    loop.timer = open_timer();
    /* The first of everything is slow; what is sent first is what would be held. */
    for (int i = 0; i < 2; i++) rehearse(&decider), finish(&decider, 0, 0);
    prepare_real_time(&real_time, options.priority, options.core);
    make_title();
}

/* The words behind "loop"; the process ends here. */
__attribute__((noreturn)) static void serve_in_loop(int count, char *const *words, char *const *environment)
{
    char room[512];
    struct text why = {room, room, room + sizeof room - 1};
    options = (struct options){.release = "", .core = -1, LOOP_DEFAULTS};
    int good = 1;
    for (int i = 0; i < count && good; i++) {
        if (equals("--help", words[i], length_of(words[i]))) put_to(1, OPTIONS_TEXT), leave(0);
        good = read_option(&options, words[i], &why);
    }
    if (good && !options.socket) good = 0, put(&why, "the following argument is required: --socket");
    if (!good) {
        *why.at = 0;
        put_to(2, OPTIONS_TEXT), put_to(2, "policy-agent: error: "), put_to(2, room), put_to(2, "\n");
        leave(EXIT_USAGE);
    }
    prepare(environment);
    put_to(2, title), put_to(2, "\n");
    for (int i = 0; i < real_time.count; i++) {
        const struct granted *g = &real_time.one[i];
        if (g->is_granted) continue;
        put_to(2, "not granted: "), put_to(2, g->name), put_to(2, ": "), put_to(2, g->reason), put_to(2, "\n");
    }
    if (!is_all_granted(&real_time)) {
        struct text lines = {room, room, room + sizeof room - 1};
        put_what_grants_it(&lines), *lines.at = 0;
        put_to(2, "What grants it:\n"), put_to(2, room);
    }
    notify(&notifier, "READY=1", title);
    turn(&loop);
    notify(&notifier, "STOPPING=1", loop.why);
    call(UNLINKAT, AT_FDCWD, (long)options.socket, 0, 0, 0, 0);
    if (!loop.is_missed) leave(0);
    put_to(2, "ended: "), put_to(2, loop.why), put_to(2, "\n");
    leave(EXIT_MISSED);
}
#endif
