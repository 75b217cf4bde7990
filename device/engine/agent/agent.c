/* policy-agent: decides, measures and answers as device/agent does, one JSON object a line, and needs no Python, no C
 * library, nothing: `policy-agent policy.pack`. The protocol is that of device/agent/protocol.py, without episodes, period
 * and several threads; its errors have the same codes. Numbers, names and frames are those of constants.h, which
 * device/deploy/static_agent/constants.py prints. `policy-agent policy.pack loop` serves in a robot's loop (loop/). */
#include "../engine.h"
#include "device.h"
#include "json.h"
#include "measure.h"
#include "number.h"
#include "pack.h"
#include "sha256.h"
#include "system.h"
#include "text.h"

enum { ROOM = 2 << 20, MOST_MEMORY = 64 << 20 };
#define MOST_LINE 2097152
static const float LARGEST = 3.4028234663852886e38f;

static const struct pack *pack;
static const struct numbers *sizes;
static _Alignas(64) unsigned char memory[MOST_MEMORY]; /* only what the artifact needs is ever touched */
static float observation[1 << 20], outputs[1 << 16];
static uint32_t times[MAX_RUNS];
static char line[MOST_LINE + 1], buffer[ROOM];
static uint64_t began, ready, cold[6];   /* cold: verify, build, first, golden, total; whether it is loaded */
static int64_t decisions, baseline = -1, before_load = -1, after_load = -1, running_peak = -1, lifetime_peak = -1;
static int loads, was_reset, has_ended;
static struct { double error, tolerance, steps, agreement, fp32_agreement; } golden;
enum { VERIFY, BUILD, FIRST, GOLDEN, TOTAL, LOADED_NOW };

#ifndef AGENT_HOSTED
void *memcpy(void *to, const void *from, size_t n)
{
    for (size_t i = 0; i < n; i++) ((unsigned char *)to)[i] = ((const unsigned char *)from)[i];
    return to;
}

void *memset(void *to, int value, size_t n)
{
    for (size_t i = 0; i < n; i++) ((unsigned char *)to)[i] = (unsigned char)value;
    return to;
}

int memcmp(const void *a, const void *b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const int differ = ((const unsigned char *)a)[i] - ((const unsigned char *)b)[i];
        if (differ) return differ;
    }
    return 0;
}
#endif

/* ---- replies ------------------------------------------------------------------------------------------------------- */
struct request { struct object members; struct value op, id; };

static void put_head(struct text *t, const struct request *r, int ok)
{
    put(t, ok ? "{\"ok\":true,\"op\":" : "{\"ok\":false,\"op\":");
    if (r->op.kind == WORD) {
        char name[60];
        const size_t n = resolved(r->op, name, sizeof name);
        put_word(t, name, n < sizeof name ? n : 0); /* a longer one is none of ours */
    } else put(t, "null");
    if (r->id.kind == WORD || r->id.kind == NUMBER) put(t, ",\"id\":"), put_bytes(t, r->id.begin, (size_t)(r->id.end - r->id.begin));
    else if (r->id.kind == NULL_VALUE) put(t, ",\"id\":null");
}

static void put_section(struct text *t, enum section which) { put_bytes(t, section_of(pack, which), pack->section[which].size); }

/* An error's reply is begun, its message is written by whoever refuses, and then it is ended. */
static struct text fault;
static char fault_text[4096];

static int refuse(struct text *t, const struct request *r, const char *code, const char *next)
{
    t->at = t->begin;
    put_head(t, r, 0);
    put(t, ",\"error\":{\"code\":\""), put(t, code), put(t, "\",\"message\":");
    put_word(t, fault.begin, (size_t)(fault.at - fault.begin));
    put(t, ",\"next\":"), put_word(t, next, length_of(next)), put(t, "}}\n");
    return 0;
}

static int refuse_field(struct text *t, const struct request *r, const char *name, struct value v, const char *allowed)
{
    put(&fault, "'"), put(&fault, name), put(&fault, "' is "), put_short(&fault, v), put(&fault, "; allowed is "), put(&fault, allowed), put(&fault, ".");
    return refuse(t, r, CODE_BAD_FIELD, "Type {\"op\": \"help\"} for examples.");
}

/* An integer field, or what it is when absent; 0 where it is refused. */
static int integer(struct text *t, const struct request *r, const char *name, int64_t low, int64_t high, int64_t absent, int64_t *to)
{
    const struct value v = member_of(&r->members, name);
    int whole = 0;
    double x = 0.0;
    *to = absent;
    if (v.kind == NOTHING) return 1;
    if (v.kind == NUMBER && *v.begin != 'N' && *v.begin != 'I' && v.begin[*v.begin == '-'] != 'I') x = read_number(v.begin, v.end, &whole);
    if (whole && x >= (double)low && x <= (double)high) {
        *to = (int64_t)x;
        return 1;
    }
    char allowed[80];
    struct text a = {allowed, allowed, allowed + sizeof allowed - 1};
    put(&a, "an integer from "), put_signed(&a, low), put(&a, " to "), put_signed(&a, high);
    *a.at = 0;
    return refuse_field(t, r, name, v, allowed);
}

/* ---- deciding ------------------------------------------------------------------------------------------------------ */
static struct native *engine(void) { return (struct native *)(void *)memory; }

static int has_no_number(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) if (!(x[i] >= -LARGEST && x[i] <= LARGEST)) return 1;
    return 0;
}

static void put_floats(struct text *t, const float *x)
{
    put_char(t, '[');
    for (uint32_t i = 0; i < sizes->outputs; i++) {
        if (i) put_char(t, ',');
        put_double(t, (double)x[i]);
    }
    put_char(t, ']');
}

static void put_action(struct text *t, int decision)
{
    if (sizes->discrete) put_signed(t, decision);
    else put_floats(t, outputs);
}

/* The name of an element of the observation, as a person knows it. */
static void put_element(struct text *t, uint32_t index)
{
    const char *s = section_of(pack, FIELDS), *end = s + pack->section[FIELDS].size;
    while (s < end) {
        uint32_t size = 0, n = 0;
        while (s < end && *s >= '0' && *s <= '9') size = 10 * size + (uint32_t)(*s++ - '0');
        for (s++; s + n < end && s[n] != '\n';) n++;
        if (index < size) {
            put_bytes(t, s, n);
            if (size > 1) put_char(t, '['), put_unsigned(t, index), put_char(t, ']');
            return;
        }
        index -= size, s += n + 1;
    }
}

/* A list of numbers as an observation; 0 where it is refused. */
static int read_observation(struct text *t, const struct request *r, struct value list, const char *where, int64_t row)
{
    const char *why, *s = list.kind == LIST ? blank(list.begin + 1, list.end) : list.end;
    uint32_t n = 0, wrong = sizes->observation;
    struct value element = {NOTHING, 0, 0};
    while (list.kind == LIST && *s != ']') {
        const char *behind;
        int whole;
        const int is_finite = (*s >= '0' && *s <= '9') || (*s == '-' && s[1] != 'I');
        const double x = is_finite ? number_that_begins(s, list.end, &behind, &whole) : 0.0;
        if (!is_finite) behind = behind_value(s, list.end, 0, &why);
        if (n < sizes->observation) {
            if ((!is_finite || !(x >= -(double)LARGEST && x <= (double)LARGEST)) && wrong == sizes->observation) wrong = n, element = (struct value){kind_of(*s), s, behind};
            observation[n] = wrong == n ? 0.0f : (float)x;
        }
        n++;
        s = blank(behind, list.end);
        s = blank(*s == ',' ? s + 1 : s, list.end);
    }
    if (list.kind == LIST && n == sizes->observation && wrong == n) return 1;
    put(&fault, where);
    if (row >= 0) put_char(&fault, '['), put_signed(&fault, row), put_char(&fault, ']');
    if (list.kind == LIST && n == sizes->observation) {
        put_char(&fault, '['), put_unsigned(&fault, wrong), put(&fault, "] ("), put_element(&fault, wrong), put(&fault, ") is "), put_short(&fault, element);
        put(&fault, "; allowed are finite numbers up to 3.4e+38 in size.");
        return refuse(t, r, CODE_BAD_OBSERVATION, "Send the raw observation in physical units; the normaliser is inside the artifact.");
    }
    put(&fault, " is ");
    if (list.kind == LIST) put_unsigned(&fault, n), put(&fault, " values");
    else put_short(&fault, list);
    put(&fault, "; policy "), put_section(&fault, POLICY), put(&fault, " takes a list of "), put_section(&fault, WANTED), put_char(&fault, '.');
    return refuse(t, r, CODE_BAD_OBSERVATION, "For example: {\"op\": \"act\", \"observation\": [0.0, ...]}");
}

static int refuse_unloaded(struct text *t, const struct request *r)
{
    put(&fault, "nothing is loaded yet; load an artifact first.");
    return refuse(t, r, CODE_NOT_LOADED, "Type {\"op\": \"load\", \"precision\": \"int8\"}");
}

/* The value in a list that begins at *s, which stands at the next one then, or at the list's end. */
static struct value next_value(const char **s, const char *end)
{
    const char *why;
    const struct value found = {kind_of(**s), *s, behind_value(*s, end, 0, &why)};
    *s = blank(found.end, end);
    *s = blank(**s == ',' ? *s + 1 : *s, end);
    return found;
}

static int answer_act(struct text *t, const struct request *r)
{
    static uint64_t took[MAX_ROWS];
    const struct value one = member_of(&r->members, "observation"), many = member_of(&r->members, "observations");
    const struct value period = member_of(&r->members, "period"), flag = member_of(&r->members, "outputs"), start = member_of(&r->members, "start");
    const int has_one = one.kind != NOTHING, has_many = many.kind != NOTHING, has_period = period.kind != NOTHING;
    if (has_one && (one.kind != LIST || *blank(one.begin + 1, one.end) == ']')) return refuse_field(t, r, "observation", one, "a list that is not empty");
    if (has_many && (many.kind != LIST || *blank(many.begin + 1, many.end) == ']')) return refuse_field(t, r, "observations", many, "a list that is not empty");
    if (has_period && (period.kind != LIST || *blank(period.begin + 1, period.end) == ']')) return refuse_field(t, r, "period", period, "a list that is not empty");
    if (flag.kind != NOTHING && flag.kind != TRUE && flag.kind != FALSE) return refuse_field(t, r, "outputs", flag, "true or false");
    if (start.kind != NOTHING && start.kind != TRUE && start.kind != FALSE) return refuse_field(t, r, "start", start, "true or false");
    if (!cold[LOADED_NOW]) return refuse_unloaded(t, r);
    const uint64_t begin = now_ns();
    if (has_one + has_many + has_period != 1) {
        put(&fault, "act takes one of \"observation\" (a list of numbers) and \"observations\" (a list of them).");
        return refuse(t, r, has_one + has_many + has_period ? CODE_BAD_FIELD : CODE_MISSING_FIELD, "For example: {\"op\": \"act\", \"observation\": [0.0, ...]}");
    }
    if (has_period) {
        put(&fault, "this agent remembers no earlier periods.");
        return refuse(t, r, CODE_UNAVAILABLE, "Send whole observations, or deploy the agent in Python.");
    }
    const int with_outputs = flag.kind != FALSE;
    uint32_t rows = 0;
    if (has_many) { /* all of them are read before one is decided on, so that an error leaves nothing half done */
        for (const char *s = blank(many.begin + 1, many.end); *s != ']';) {
            const struct value row = next_value(&s, many.end);
            if (rows == MAX_ROWS) return refuse_field(t, r, "observations", many, "a list of at most " STRING(MAX_ROWS) " rows");
            if (!read_observation(t, r, row, "observations", rows)) return 0;
            rows++;
        }
    } else if (!read_observation(t, r, one, "observation", -1)) return 0;
    put_head(t, r, 1);
    put(t, has_many ? ",\"actions\":[" : ",\"action\":");
    const char *s = has_many ? blank(many.begin + 1, many.end) : 0;
    for (uint32_t i = 0; i < (has_many ? rows : 1); i++) {
        if (has_many) read_observation(t, r, next_value(&s, many.end), "observations", i);
        const uint64_t from = now_ns();
        const int decision = native_decide(engine(), observation, outputs);
        took[i] = now_ns() - from;
        decisions++;
        if (has_no_number(outputs, sizes->outputs)) {
            put(&fault, "the artifact computes NaN or infinity from this observation; that is no decision.");
            return refuse(t, r, CODE_NOT_FINITE, "Take the robot's own fallback; the observation may be outside of all that the policy was trained on.");
        }
        if (i) put_char(t, ',');
        put_action(t, decision);
    }
    if (has_many) put_char(t, ']');
    if (with_outputs) {
        put(t, has_many ? ",\"outputs\":[" : ",\"outputs\":");
        s = has_many ? blank(many.begin + 1, many.end) : 0;
        for (uint32_t i = 0; has_many && i < rows; i++) {
            read_observation(t, r, next_value(&s, many.end), "observations", i);
            native_decide(engine(), observation, outputs);
            if (i) put_char(t, ',');
            put_floats(t, outputs);
        }
        if (has_many) put_char(t, ']');
        else put_floats(t, outputs);
    }
    put(t, ",\"inference_ns\":");
    if (has_many) put_char(t, '[');
    for (uint32_t i = 0; i < (has_many ? rows : 1); i++) {
        if (i) put_char(t, ',');
        put_unsigned(t, took[i]);
    }
    if (has_many) put_char(t, ']');
    put(t, ",\"request_ns\":"), put_unsigned(t, now_ns() - begin), put(t, "}\n");
    return 1;
}

/* ---- loading ------------------------------------------------------------------------------------------------------- */
static void put_size(struct text *t, const char *key, int64_t bytes)
{
    put(t, key);
    if (bytes >= 0) put_signed(t, bytes);
    else put(t, "null");
}

static void note_peak(struct resident now)
{
    if (now.peak > lifetime_peak) lifetime_peak = now.peak;
}

static void put_memory(struct text *t)
{
    const struct resident now = resident();
    note_peak(now);
    put_size(t, "\"memory\":{\"baseline\":", baseline), put_size(t, ",\"before_load\":", before_load), put_size(t, ",\"after_load\":", after_load);
    put_size(t, ",\"now\":", now.now), put_size(t, ",\"running_peak\":", running_peak), put_size(t, ",\"lifetime_peak\":", lifetime_peak);
    put_size(t, ",\"anonymous\":", now.anonymous), put_size(t, ",\"file_backed\":", now.file_backed), put_size(t, ",\"swap\":", now.swap);
    put(t, was_reset ? ",\"peak_reset\":true" : ",\"peak_reset\":false"), put(t, loads <= 1 ? ",\"clean\":true}" : ",\"clean\":false}");
}

/* Every golden vector, held to what the reference computes; 0 where one is refused. */
static int check_golden(struct text *t, const struct request *r)
{
    const float *inputs = section_of(pack, OBSERVATIONS), *wanted = section_of(pack, OUTPUTS), *tolerance = section_of(pack, TOLERANCE);
    const float *steps = section_of(pack, STEPS);
    const void *others = section_of(pack, DECISIONS);
    uint32_t same = 0, same_float = 0;
    double worst = -1.0;
    for (uint32_t row = 0; row < sizes->rows; row++) {
        const float *expected = wanted + (size_t)row * sizes->outputs, *allowed = tolerance + (size_t)row * sizes->outputs;
        const int decision = native_decide(engine(), inputs + (size_t)row * sizes->observation, outputs);
        int best = 0, near = 1, near_float = 1;
        for (uint32_t i = 0; i < sizes->outputs; i++) {
            double error = (double)outputs[i] - (double)expected[i];
            error = error < 0 ? -error : error;
            if (!(error <= (double)allowed[i])) {
                put(&fault, "golden vector "), put_unsigned(&fault, row), put(&fault, ", output "), put_unsigned(&fault, i);
                put(&fault, " is computed wrongly on this device.");
                return refuse(t, r, CODE_GOLDEN, "Deploy again, or convert the policy again.");
            }
            const double share = error / ((double)allowed[i] > 1e-300 ? (double)allowed[i] : 1e-300);
            if (share > worst) worst = share, golden.error = error, golden.tolerance = (double)allowed[i], golden.steps = steps[i] > 0 ? error / (double)steps[i] : 0.0;
            if (expected[i] > expected[best]) best = (int)i;
            if (!sizes->discrete) {
                const double off = (double)outputs[i] - (double)((const float *)others)[(size_t)row * sizes->outputs + i];
                near_float &= (off < 0 ? -off : off) <= (double)allowed[i];
            }
        }
        same += sizes->discrete ? decision == best : (uint32_t)near;
        same_float += sizes->discrete ? (uint32_t)decision == ((const uint32_t *)others)[row] : (uint32_t)near_float;
    }
    golden.agreement = (double)same / sizes->rows, golden.fp32_agreement = (double)same_float / sizes->rows;
    return 1;
}

static int answer_load(struct text *t, const struct request *r)
{
    const struct value precision = member_of(&r->members, "precision"), runtime = member_of(&r->members, "runtime");
    char wanted[16] = {0};
    int64_t threads;
    if (precision.kind == NOTHING) {
        put(&fault, "load needs 'precision': one of " PRECISION_TEXT ".");
        return refuse(t, r, CODE_MISSING_FIELD, "For example: {\"op\": \"load\", \"precision\": \"int8\"}");
    }
    __builtin_memcpy(wanted, section_of(pack, PRECISION), pack->section[PRECISION].size < 15 ? pack->section[PRECISION].size : 15);
    if (!is_one_of(precision, PRECISION_NAMES)) return refuse_field(t, r, "precision", precision, "one of " PRECISION_TEXT);
    if (runtime.kind != NOTHING && runtime.kind != NULL_VALUE && !is_word(runtime, "native")) {
        if (is_one_of(runtime, RUNTIME_NAMES)) {
            put(&fault, "this agent has one runtime, native.");
            return refuse(t, r, CODE_UNAVAILABLE, "Load it with \"runtime\": \"native\".");
        }
        return refuse_field(t, r, "runtime", runtime, "one of " RUNTIME_TEXT);
    }
    const struct value count = member_of(&r->members, "threads");
    if (count.kind != NULL_VALUE) {
        if (!integer(t, r, "threads", 1, MAX_THREADS, 1, &threads)) return 0;
        if (threads != 1) {
            put(&fault, "threads is "), put_signed(&fault, threads), put(&fault, "; this agent decides with 1.");
            return refuse(t, r, CODE_BAD_FIELD, "Load it with threads=1.");
        }
    }
    if (!is_word(precision, wanted)) {
        put(&fault, "the bundle has no "), put_short(&fault, precision), put(&fault, " artifact here; it has "), put(&fault, wanted), put_char(&fault, '.');
        return refuse(t, r, CODE_BUNDLE, "Deploy this precision.");
    }
    const uint64_t begin = now_ns();
    unsigned char hash[32];
    const void *artifact = section_of(pack, ARTIFACT);
    const size_t bytes = pack->section[ARTIFACT].size;
    loads++;
    before_load = resident().now;
    sha256(artifact, bytes, hash);
    if (__builtin_memcmp(hash, section_of(pack, SHA256), 32)) {
        put(&fault, "the artifact is not the one that was converted: its hash is another.");
        return refuse(t, r, CODE_BUNDLE, "Deploy the policy again.");
    }
    const uint64_t verified = now_ns();
    if (native_memory(artifact, bytes) > sizeof memory) {
        put(&fault, "the engine needs more memory for this artifact than this agent has.");
        return refuse(t, r, CODE_RUNTIME, "Deploy the agent in Python.");
    }
    const enum native_error error = native_open(memory, sizeof memory, artifact, bytes);
    if (error) {
        put(&fault, "native cannot execute this artifact: it "), put(&fault, native_message(error)), put_char(&fault, '.');
        return refuse(t, r, CODE_RUNTIME, "Convert it again.");
    }
    const uint64_t built = now_ns();
    native_decide(engine(), section_of(pack, OBSERVATIONS), outputs);
    const uint64_t first = now_ns();
    if (!check_golden(t, r)) {
        cold[LOADED_NOW] = 0;
        return 0;
    }
    cold[VERIFY] = verified - begin, cold[BUILD] = built - verified, cold[FIRST] = first - built, cold[GOLDEN] = now_ns() - first;
    cold[TOTAL] = now_ns() - begin, cold[LOADED_NOW] = 1;
    /* Golden vectors are not needed until somebody measures. */
    const uintptr_t from = ((uintptr_t)section_of(pack, OBSERVATIONS) + 4095) & ~(uintptr_t)4095, to = ((uintptr_t)pack + pack->bytes) & ~(uintptr_t)4095;
    if (to > from) call(MADVISE, (long)from, (long)(to - from), 4, 0, 0, 0);
    after_load = resident().now;
    put_head(t, r, 1);
    put(t, ",\"loaded\":"), put_section(t, LOADED);
    put(t, ",\"golden\":{\"vectors\":"), put_unsigned(t, sizes->rows);
    put(t, ",\"max_error\":"), put_double(t, golden.error), put(t, ",\"max_error_steps\":"), put_double(t, golden.steps);
    put(t, ",\"tolerance\":"), put_double(t, golden.tolerance), put(t, ",\"action_agreement\":"), put_double(t, golden.agreement);
    put(t, ",\"fp32_agreement\":"), put_double(t, golden.fp32_agreement), put(t, "},"), put_memory(t);
    put(t, ",\"cold\":{\"import_ns\":0,\"verify_ns\":"), put_unsigned(t, cold[VERIFY]), put(t, ",\"build_ns\":"), put_unsigned(t, cold[BUILD]);
    put(t, ",\"first_ns\":"), put_unsigned(t, cold[FIRST]), put(t, ",\"golden_ns\":"), put_unsigned(t, cold[GOLDEN]);
    put(t, ",\"total_ns\":"), put_unsigned(t, cold[TOTAL]), put(t, "}}\n");
    return 1;
}

/* ---- measuring ----------------------------------------------------------------------------------------------------- */
static int answer(char *begin, char *end, struct text *t);

static void progress(const char *op, int64_t done, int64_t total)
{
    char room[160];
    struct text t = {room, room, room + sizeof room};
    put(&t, "{\"progress\":{\"op\":\""), put(&t, op), put(&t, "\",\"done\":"), put_signed(&t, done), put(&t, ",\"total\":"), put_signed(&t, total), put(&t, "}}\n");
    write_all(1, room, (size_t)(t.at - t.begin));
}

/* Lines of the pack's, to be answered. */
static char request_line[MOST_LINE + 1], reply_line[ROOM];

static size_t copy_line(uint32_t number)
{
    const char *s = section_of(pack, LINES), *end = s + pack->section[LINES].size;
    for (number %= sizes->lines; number && s < end; s++) number -= *s == '\n';
    size_t n = 0;
    while (s + n < end && s[n] != '\n' && n < MOST_LINE) request_line[n] = s[n], n++;
    request_line[n] = '\n';
    return n;
}

static void call_once(int through_lines, uint32_t number, size_t length)
{
    if (through_lines) {
        struct text t = {reply_line, reply_line, reply_line + sizeof reply_line};
        answer(request_line, request_line + length, &t);
    } else native_decide(engine(), (const float *)section_of(pack, OBSERVATIONS) + (size_t)(number % sizes->rows) * sizes->observation, outputs);
}

static int answer_latency(struct text *t, const struct request *r)
{
    int64_t warmup, runs;
    const struct value path = member_of(&r->members, "path");
    if (!integer(t, r, "warmup", 0, MAX_RUNS, LATENCY_WARMUP, &warmup) || !integer(t, r, "runs", 1, MAX_RUNS, LATENCY_RUNS, &runs)) return 0;
    if (path.kind != NOTHING && !is_one_of(path, PATH_NAMES)) return refuse_field(t, r, "path", path, "one of " PATH_TEXT);
    if (!cold[LOADED_NOW]) return refuse_unloaded(t, r);
    const int through_lines = is_word(path, "decide");
    const int64_t before = decisions;
    long usage[18] = {0}, used[18] = {0};
    char looks[2][2048];
    struct text first = {looks[0], looks[0], looks[1]}, last = {looks[1], looks[1], looks[1] + sizeof looks[1]};
    const long word = put_conditions(&first);
    long during = word < 0 ? 0 : word & 15, occurred = word;
    call(GETRUSAGE, 0, (long)usage, 0, 0, 0, 0);
    size_t length = 0;
    for (int64_t i = 0; i < warmup; i++) length = through_lines ? copy_line((uint32_t)i) : 0, call_once(through_lines, (uint32_t)i, length);
    uint64_t chunk = now_ns() + CHUNK_NS, due = now_ns() + PROGRESS_INTERVAL_NS;
    for (int64_t i = 0; i < runs; i++) {
        length = through_lines ? copy_line((uint32_t)i) : 0;
        const uint64_t from = now_ns();
        COUNT_FROM_HERE;
        call_once(through_lines, (uint32_t)i, length);
        COUNT_TO_HERE;
        const uint64_t to = now_ns();
        times[i] = to - from > UINT32_MAX ? UINT32_MAX : (uint32_t)(to - from);
        if (to < chunk || i + 1 == runs) continue;
        const long now = throttle_word();
        if (now >= 0) during |= now & 15, occurred = now;
        if (to > due) progress("latency", i + 1, runs), due = to + PROGRESS_INTERVAL_NS;
        for (int k = 0; k < REWARM_RUNS; k++) length = through_lines ? copy_line((uint32_t)k) : 0, call_once(through_lines, (uint32_t)k, length);
        chunk = now_ns() + CHUNK_NS;
    }
    call(GETRUSAGE, 0, (long)used, 0, 0, 0, 0);
    const long end_word = put_conditions(&last);
    if (end_word >= 0) during |= end_word & 15, occurred = end_word;
    if (word >= 0) during |= occurred >> 16 & ~(word >> 16) & 15;
    decisions = before + (through_lines ? decisions - before : warmup + runs);
    sort(times, (int)runs);
    put_head(t, r, 1);
    put(t, ",\"loaded\":"), put_section(t, LOADED);
    put(t, through_lines ? ",\"path\":\"decide\"" : ",\"path\":\"runtime\""), put(t, ",\"warmup\":"), put_signed(t, warmup);
    put(t, ",\"cold_first_ns\":"), put_unsigned(t, cold[FIRST]), put(t, ",\"load_ns\":"), put_unsigned(t, cold[TOTAL]), put_char(t, ',');
    put_statistics(t, times, (int)runs);
    for (int i = 0; i < TIMER_PAIRS; i++) {
        const uint64_t from = now_ns();
        times[i] = (uint32_t)(now_ns() - from);
    }
    sort(times, TIMER_PAIRS);
    put(t, ",\"timer\":{\"overhead_ns\":"), put_unsigned(t, times[TIMER_PAIRS / 2]), put(t, ",\"resolution_ns\":1.0,\"clock\":\"clock_gettime(CLOCK_MONOTONIC)\"}");
    put(t, ",\"before\":{"), put_bytes(t, first.begin, (size_t)(first.at - first.begin)), put(t, "},\"after\":{"), put_bytes(t, last.begin, (size_t)(last.at - last.begin));
    put(t, "},\"context_switches\":{\"voluntary\":"), put_signed(t, used[16] - usage[16]), put(t, ",\"involuntary\":"), put_signed(t, used[17] - usage[17]);
    put(t, "},\"page_faults\":{\"minor\":"), put_signed(t, used[8] - usage[8]), put(t, ",\"major\":"), put_signed(t, used[9] - usage[9]);
    put(t, during ? "},\"valid\":false,\"invalid_reasons\":[" : "},\"valid\":true,\"invalid_reasons\":[");
    for (int i = 0, any = 0; i < THROTTLE_COUNT; i++)
        if (during >> i & 1) put(t, any++ ? ",\"" : "\""), put(t, THROTTLE_NAMES[i]), put(t, " during the measurement\"");
    put(t, "],\"notes\":[]}\n");
    return 1;
}

static int answer_memory(struct text *t, const struct request *r)
{
    int64_t runs;
    if (!integer(t, r, "runs", 1, MAX_RUNS, MEMORY_RUNS, &runs)) return 0;
    if (!cold[LOADED_NOW]) return refuse_unloaded(t, r);
    note_peak(resident());
    was_reset = reset_peak();
    for (int64_t i = 0; i < runs; i++) call_once(0, (uint32_t)i, 0);
    const struct resident now = resident();
    running_peak = now.peak, decisions += runs;
    note_peak(now);
    put_head(t, r, 1);
    put(t, ",\"loaded\":"), put_section(t, LOADED), put_char(t, ','), put_memory(t);
    put(t, ",\"artifact_bytes\":"), put_unsigned(t, pack->section[ARTIFACT].size), put(t, ",\"runs\":"), put_signed(t, runs), put(t, "}\n");
    return 1;
}

/* ---- requests ------------------------------------------------------------------------------------------------------ */
static int answer_hello(struct text *t, const struct request *r)
{
    put_head(t, r, 1);
    put(t, ",\"protocol\":" STRING(PROTOCOL_VERSION) ",\"agent\":{\"version\":\"1 (static)\",\"pid\":"), put_signed(t, call(GETPID, 0, 0, 0, 0, 0, 0));
    put_size(t, ",\"ready_ns\":", ready ? (int64_t)(ready - began) : -1);
    put(t, "},\"device\":"), put_device(t);
    put(t, ",\"runtimes\":{\"native\":\"" ENGINE_VERSION "\"},\"preferred_runtime\":\"native\",\"simulator\":false,\"bundle\":"), put_section(t, BUNDLE);
    put(t, ",\"bundle_error\":null,\"loaded\":");
    if (cold[LOADED_NOW]) put_section(t, LOADED);
    else put(t, "null");
    put(t, "}\n");
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
    has_ended = 1;
    put_head(t, r, 1);
    put(t, ",\"decisions\":"), put_signed(t, decisions), put(t, "}\n");
    return 1;
}

static int answer_episodes(struct text *t, const struct request *r)
{
    put(&fault, "this agent has no simulator.");
    return refuse(t, r, CODE_UNAVAILABLE, "Let the host simulate (bench/success.py --on loop), or deploy the agent in Python.");
}

static const struct operation {
    const char *name, *fields[8];
    int (*answer)(struct text *, const struct request *);
} OPERATIONS[] = {
#define OPERATION(name, ...) {#name, {__VA_ARGS__}, answer_##name},
    EACH_OPERATION(OPERATION)
};

static void put_names(struct text *t, const char *const *names)
{
    if (!*names) put(t, "none");
    for (int i = 0; names[i]; i++) put(t, i ? ", " : ""), put(t, names[i]);
}

/* One request line, one reply line; 0 where it is refused. */
static int answer(char *begin, char *end, struct text *t)
{
    static struct request nested[2];
    static int depth;
    struct request *r = &nested[depth];
    const char *why, *s = blank(begin, end), *behind;
    fault = (struct text){fault_text, fault_text, fault_text + sizeof fault_text};
    r->op = r->id = (struct value){NOTHING, 0, 0};
    behind = s < end && *s == '{' ? behind_members(s, end, &r->members, &why) : behind_value(s, end, 0, &why);
    if (!behind || blank(behind, end) != end) {
        put(&fault, "the line is not valid JSON ("), put(&fault, behind ? "something follows" : why), put(&fault, ").");
        return refuse(t, r, CODE_BAD_JSON, "Type one JSON object a line, for example {\"op\": \"help\"}");
    }
    if (*s != '{') {
        put(&fault, "the line is "), put_short(&fault, (struct value){kind_of(*s), s, behind}), put(&fault, "; a request is a JSON object.");
        return refuse(t, r, CODE_BAD_REQUEST, "Type one with an \"op\", for example {\"op\": \"help\"}");
    }
    r->op = member_of(&r->members, "op");
    const struct value id = member_of(&r->members, "id");
    const int is_whole = id.kind == NUMBER && (is_digit(id.begin, id.end) || (*id.begin == '-' && is_digit(id.begin + 1, id.end)));
    int is_integer = is_whole;
    for (const char *c = id.begin; is_whole && c < id.end; c++) is_integer &= *c == '-' || is_digit(c, id.end);
    if (id.kind != NOTHING && id.kind != NULL_VALUE && (!(id.kind == WORD || is_integer) || id.end - id.begin > MAX_ID + 2))
        return refuse_field(t, r, "id", id, "a string or an integer of at most " STRING(MAX_ID) " characters");
    r->id = id;
    const struct operation *o = 0;
    for (int i = 0; i < OPERATION_COUNT; i++) if (is_word(r->op, OPERATIONS[i].name)) o = &OPERATIONS[i];
    if (!o) {
        if (r->op.kind == NOTHING) put(&fault, "the request has no \"op\"");
        else put(&fault, "op "), put_short(&fault, r->op), put(&fault, " is not known");
        put(&fault, "; there are " OPERATION_TEXT ".");
        return refuse(t, r, CODE_UNKNOWN_OP, "Type {\"op\": \"help\"} for examples.");
    }
    for (int i = 0; i < r->members.count; i++) {
        const struct member *m = &r->members.member[i];
        int known = is_key(m, "op") || is_key(m, "id");
        for (int k = 0; o->fields[k]; k++) known |= is_key(m, o->fields[k]);
        if (known) continue;
        put(&fault, o->name), put(&fault, " has no field "), put_bytes(&fault, m->key, m->length < 40 ? m->length : 0);
        put(&fault, "; its fields are "), put_names(&fault, o->fields), put_char(&fault, '.');
        return refuse(t, r, CODE_UNKNOWN_FIELD, "Type {\"op\": \"help\"} for examples.");
    }
    depth++;                        /* latency answers lines meanwhile */
    const int done = o->answer(t, r);
    depth--;
    if (t->at < t->end) return done;
    fault.at = fault.begin;
    put(&fault, "the reply would be longer than this agent holds.");
    return refuse(t, r, CODE_LINE_TOO_LONG, "Send fewer observations in one request.");
}

static void serve(void)
{
    size_t have = 0;
    int too_long = 0;
    for (ready = now_ns(); !has_ended;) {
        size_t n = 0;
        while (n < have && line[n] != '\n') n++;
        if (n == have && have < MOST_LINE) {
            const long more = system_read(0, line + have, MOST_LINE - have);
            if (more == -4) continue;
            if (more <= 0) return;
            have += (size_t)more;
            continue;
        }
        struct text t = {buffer, buffer, buffer + sizeof buffer};
        if (n == have) {            /* the rest of a line that is too long is read over, and answered at its end */
            too_long = 1, have = 0;
            continue;
        }
        const int is_blank = blank(line, line + n) == line + n;
        if (too_long) {
            struct request none = {.op = {NOTHING, 0, 0}};
            fault = (struct text){fault_text, fault_text, fault_text + sizeof fault_text};
            put(&fault, "the line is longer than " STRING(MOST_LINE) " bytes.");
            refuse(&t, &none, CODE_LINE_TOO_LONG, "Send fewer observations in one request.");
        } else if (!is_blank) {
            answer(line, line + n, &t);
        }
        too_long = 0;
        if (t.at > t.begin && !write_all(1, t.begin, (size_t)(t.at - t.begin))) return;
        have -= n + 1;
        for (size_t i = 0; i < have; i++) line[i] = line[n + 1 + i];
    }
}

#include "loop/service.h"

static void run(int count, char *const *words, char *const *environment)
{
    static const char USAGE[] = "policy-agent policy.pack [--threads=1]: one JSON object a line. Try {\"op\": \"help\"}\n"
                                "policy-agent policy.pack loop --help: in a robot's loop\n";
    began = now_ns();
    const int in_loop = count >= 3 && equals("loop", words[2], length_of(words[2]));
    int known = count >= 2;
    for (int i = 2; i < count && !in_loop; i++) known &= equals("--threads=1", words[i], length_of(words[i]));
    if (!known) {
        write_all(2, USAGE, sizeof USAGE - 1);
        leave(2);
    }
    size_t bytes = 0;
    pack = mapped(words[1], &bytes);
    const char *why = wrong_pack(pack, bytes);
    if (why) {
        write_all(2, "policy-agent: ", 14), write_all(2, why, length_of(why)), write_all(2, "\n", 1);
        leave(1);
    }
    sizes = section_of(pack, NUMBERS);
    call(PRCTL, 41, 1, 0, 0, 0, 0); /* PR_SET_THP_DISABLE: a page of 2 MB for the few kB that a policy touches */
    baseline = resident().now;
    if (in_loop) serve_in_loop(count - 3, words + 3, environment);
    serve();
    leave(0);
}

/* The stack as the kernel leaves it: how many words there are, the words, a 0, the environment, a 0. */
void start(const long *stack);
void start(const long *stack) { run((int)stack[0], (char **)(stack + 1), (char **)(stack + stack[0] + 2)); }

#ifdef AGENT_HOSTED                 /* under sanitizers, which bring a C library */
int main(int argc, char **argv, char **environment) { run(argc, argv, environment); }
#endif
