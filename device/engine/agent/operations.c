#include "operations.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "clock.h"
#include "device.h"
#include "measure.h"
#include "number.h"
#include "pack.h"
#include "sha256.h"

#ifndef BUILD
#define BUILD ""                    /* what this program was made of: device/agent/building.py */
#endif
enum { FEW_VECTORS = 32 };          /* golden vectors that are checked where all passed before */
static const float LARGEST = 3.4028234663852886e38f;

/* An integer field, or what it is when absent; 0 where it is refused. */
static int read_integer(struct text *t, const struct request *r, const char *name, int64_t low, int64_t high,
                        int64_t absent, int64_t *to)
{
    const struct value v = member_of(&r->members, name);
    const char *end;
    int is_whole = 0;
    double x = 0.0;
    *to = absent;
    if (v.kind == MISSING) return 1;
    if (v.kind == NUMBER && is_digit(v.begin + (*v.begin == '-'), v.end)) x = read_number(v.begin, &end, &is_whole);
    if (is_whole && x >= (double)low && x <= (double)high) return *to = (int64_t)x, 1;
    char allowed[80];
    struct text a = text_of(allowed, sizeof allowed - 1);
    print(&a, "an integer from %lld to %lld", (long long)low, (long long)high);
    *a.at = 0;
    return refuse_field(t, r, name, v, allowed);
}

static int refuse_unloaded(struct text *t, const struct request *r)
{
    put(&fault, "nothing is loaded yet; load an artifact first.");
    return refuse(t, r, CODE_NOT_LOADED, "Type {\"op\": \"load\", \"precision\": \"int8\"}");
}

/* ---- act --------------------------------------------------------------------------------------------------------- */

static void put_floats(struct text *t, const float *x)
{
    for (uint32_t i = 0; i < sizes->outputs; i++) put_char(t, i ? ',' : '['), put_double(t, (double)x[i]);
    put_char(t, ']');
}

static int32_t find_largest(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) if (x[i] > x[best]) best = i;
    return best;
}

int choose(const float *outputs, int32_t *numbers)
{
    const struct choice *c = section_of(CHOICES);
    if (!are_finite(outputs, sizes->outputs)) return 0;
    for (uint32_t i = 0; i < sizes->choices; outputs += c[i++].count)
        numbers[i] = c[i].start + find_largest(outputs, c[i].count);
    return 1;
}

/* What a decision was: a number, a list of them, or the outputs. */
static void put_action(struct text *t)
{
    if (!sizes->choices) put_floats(t, agent.outputs);
    else if (sizes->choices == 1) put_signed(t, agent.numbers[0]);
    else {
        for (uint32_t i = 0; i < sizes->choices; i++) put_char(t, i ? ',' : '['), put_signed(t, agent.numbers[i]);
        put_char(t, ']');
    }
}

/* The name of an element of the observation, as a person knows it. */
static void put_element(struct text *t, uint32_t index)
{
    const char *s = section_of(FIELDS), *const end = s + section_size(FIELDS);
    while (s < end) {
        uint32_t size = 0, n = 0;
        while (is_digit(s, end)) size = 10 * size + (uint32_t)(*s++ - '0');
        for (s++; s + n < end && s[n] != '\n';) n++;
        if (index < size) {
            put_bytes(t, s, n);
            if (size > 1) print(t, "[%u]", index);
            return;
        }
        index -= size, s += n + 1;
    }
}

static int refuse_observation(struct text *t, const struct request *r, struct value list, const char *where, int row,
                              uint32_t count, uint32_t wrong, struct value element)
{
    put(&fault, where);
    if (row >= 0) print(&fault, "[%d]", row);
    if (list.kind == LIST && count == sizes->observation) {
        print(&fault, "[%u] (", wrong), put_element(&fault, wrong), put(&fault, ") is "), put_short(&fault, element);
        put(&fault, "; allowed are finite numbers up to 3.4e+38 in size.");
        return refuse(t, r, CODE_BAD_OBSERVATION,
                      "Send the raw observation in physical units; the normaliser is inside the artifact.");
    }
    put(&fault, " is ");
    if (list.kind == LIST) print(&fault, "%u values", count);
    else put_short(&fault, list);
    put(&fault, "; policy "), put_section(&fault, POLICY);
    put(&fault, " takes a list of "), put_section(&fault, WANTED), put_char(&fault, '.');
    return refuse(t, r, CODE_BAD_OBSERVATION, "For example: {\"op\": \"act\", \"observation\": [0.0, ...]}");
}

/* A list of numbers, whose form was checked, as an observation; 0 where it is refused. */
static int read_observation(struct text *t, const struct request *r, struct value list, const char *where, int row,
                            float *to)
{
    const uint32_t wanted = sizes->observation;
    const char *why, *s = list.kind == LIST ? skip_blanks(list.begin + 1, list.end) : "]";
    uint32_t count = 0, wrong = wanted;
    struct value element = {MISSING, 0, 0};
    for (; *s != ']'; count++) {
        const char *behind;
        int is_whole;
        double x = INFINITY;
        if (is_digit(s + (*s == '-'), list.end)) x = read_number(s, &behind, &is_whole);
        else behind = read_value(s, list.end, 0, &why).end;
        if (count < wanted) {
            to[count] = (float)x;
            if (wrong == wanted && !(x >= -(double)LARGEST && x <= (double)LARGEST))
                wrong = count, element = read_value(s, list.end, 0, &why);
        }
        s = skip_blanks(behind, list.end);
        if (*s == ',') s = skip_blanks(s + 1, list.end);
    }
    if (list.kind == LIST && count == wanted && wrong == wanted) return 1;
    return refuse_observation(t, r, list, where, row, count, wrong, element);
}

/* Every observation of the request into `to`; how many there are, 0 where one is refused. */
static uint32_t read_observations(struct text *t, const struct request *r, struct value one, struct value many,
                                  float *to)
{
    uint32_t rows = 0;
    if (one.kind != MISSING) return (uint32_t)read_observation(t, r, one, "observation", -1, to);
    for (struct value row = first_element(many); row.kind != MISSING; row = next_element(row, many), rows++) {
        if (rows == MAX_ROWS)
            return (uint32_t)refuse_field(t, r, "observations", many, "a list of at most " STRINGIFY(MAX_ROWS) " rows");
        if (!read_observation(t, r, row, "observations", (int)rows, to + (size_t)rows * sizes->observation)) return 0;
    }
    return rows;
}

static int is_list(struct text *t, const struct request *r, const char *name, struct value *to)
{
    *to = member_of(&r->members, name);
    if (to->kind == MISSING || first_element(*to).kind != MISSING) return 1;
    return refuse_field(t, r, name, *to, "a list that is not empty");
}

/* Decide on each row: actions into t, outputs and times into the other two. */
static int decide_rows(struct text *t, const struct request *r, const float *rows, uint32_t count, struct text *outputs,
                       struct text *times)
{
    for (uint32_t i = 0; i < count; i++) {
        const int64_t from = now_ns();
        native_decide(agent.engine, rows + (size_t)i * sizes->observation, agent.outputs);
        const int64_t took = now_ns() - from;
        agent.decisions++;
        if (!choose(agent.outputs, agent.numbers)) {
            put(&fault, "the artifact computes NaN or infinity from this observation; that is no decision.");
            return refuse(t, r, CODE_NOT_FINITE, "Take the robot's own fallback; the observation may be outside of all "
                                                 "that the policy was trained on.");
        }
        if (i) put_char(t, ','), put_char(outputs, ','), put_char(times, ',');
        put_action(t);
        if (outputs->end > outputs->begin) put_floats(outputs, agent.outputs);
        put_signed(times, took);
    }
    return 1;
}

int answer_act(struct text *t, const struct request *r)
{
    static char outputs_room[REPLY_ROOM], times_room[24 * MAX_ROWS];
    struct value one, many, period;
    int with_outputs, starts;
    if (!is_list(t, r, "observation", &one) || !is_list(t, r, "observations", &many)) return 0;
    if (!is_list(t, r, "period", &period)) return 0;
    if (!read_flag(t, r, "outputs", 1, &with_outputs) || !read_flag(t, r, "start", 0, &starts)) return 0;
    if (!agent.engine) return refuse_unloaded(t, r);
    const int64_t begin = now_ns();
    const int given = (one.kind != MISSING) + (many.kind != MISSING) + (period.kind != MISSING);
    if (given != 1) {
        put(&fault, "act takes one of \"observation\" (a list of numbers) and \"observations\" (a list of them).");
        return refuse(t, r, given ? CODE_BAD_FIELD : CODE_MISSING_FIELD,
                      "For example: {\"op\": \"act\", \"observation\": [0.0, ...]}");
    }
    if (period.kind != MISSING) {
        put(&fault, "this agent remembers no earlier periods.");
        return refuse(t, r, CODE_UNAVAILABLE, "Send whole observations, or deploy the agent in Python.");
    }
    /* All of them are read before one is decided on, so that an error leaves nothing half done. A line's numbers. */
    static float rows[MAX_LINE / 2 + (1 << 20)];
    const uint32_t count = read_observations(t, r, one, many, rows);
    if (!count) return 0;
    struct text outputs = text_of(outputs_room, with_outputs ? sizeof outputs_room : 0);
    struct text times = text_of(times_room, sizeof times_room);
    const int is_one = one.kind != MISSING;
    put_head(t, r, 1);
    put(t, is_one ? ",\"action\":" : ",\"actions\":[");
    if (!decide_rows(t, r, rows, count, &outputs, &times)) return 0;
    if (with_outputs) {
        put(t, is_one ? ",\"outputs\":" : "],\"outputs\":["), put_bytes(t, outputs.begin, text_size(&outputs));
        if (outputs.at == outputs.end) t->at = t->end; /* it did not fit: the reply is too long */
    }
    put(t, is_one ? ",\"inference_ns\":" : "],\"inference_ns\":["), put_bytes(t, times.begin, text_size(&times));
    put(t, is_one ? ",\"request_ns\":" : "],\"request_ns\":"), put_signed(t, now_ns() - begin), put(t, "}\n");
    return 1;
}

/* ---- load -------------------------------------------------------------------------------------------------------- */

static struct { int64_t verify, build, first, golden, total; } cold;
static struct { double error, tolerance, steps, agreement, fp32_agreement; uint32_t vectors; } golden;
static struct {
    int64_t before_load, after_load, running_peak, lifetime_peak;
    int loads, was_reset;
} memory = {-1, -1, -1, -1, 0, 0};

static void put_size(struct text *t, const char *key, int64_t bytes)
{
    put(t, key);
    if (bytes >= 0) put_signed(t, bytes);
    else put(t, "null");
}

static void put_memory(struct text *t)
{
    const struct resident now = read_resident();
    if (now.peak > memory.lifetime_peak) memory.lifetime_peak = now.peak;
    put_size(t, "\"memory\":{\"baseline\":", agent.baseline_bytes);
    put_size(t, ",\"before_load\":", memory.before_load), put_size(t, ",\"after_load\":", memory.after_load);
    put_size(t, ",\"now\":", now.now), put_size(t, ",\"running_peak\":", memory.running_peak);
    put_size(t, ",\"lifetime_peak\":", memory.lifetime_peak), put_size(t, ",\"anonymous\":", now.anonymous);
    put_size(t, ",\"file_backed\":", now.file_backed), put_size(t, ",\"swap\":", now.swap);
    put(t, memory.was_reset ? ",\"peak_reset\":true" : ",\"peak_reset\":false");
    put(t, memory.loads <= 1 ? ",\"clean\":true}" : ",\"clean\":false}");
}

/* One golden vector, compared with what the reference computed: whether it agrees with this precision's reference and
 * with the float policy; -1 where an output is wrong, and *wrong is its index. */
static int check_row(struct native *engine, uint32_t row, double *worst, uint32_t *wrong)
{
    const size_t count = sizes->outputs;
    const float *expected = (const float *)section_of(OUTPUTS) + row * count, *steps = section_of(STEPS);
    const float *allowed = (const float *)section_of(TOLERANCE) + row * count;
    const float *inputs = (const float *)section_of(OBSERVATIONS) + (size_t)row * sizes->observation;
    int is_same = 1, is_near = 1;
    native_decide(engine, inputs, agent.outputs);
    for (uint32_t i = 0; i < count; i++) {
        const double tolerance = (double)allowed[i], error = fabs((double)agent.outputs[i] - (double)expected[i]);
        if (!(error <= tolerance)) return *wrong = i, -1;
        const double share = error / (tolerance > 1e-300 ? tolerance : 1e-300);
        if (share > *worst) {
            *worst = share, golden.error = error, golden.tolerance = tolerance;
            golden.steps = steps[i] > 0 ? error / (double)steps[i] : 0.0;
        }
        if (sizes->choices) continue;
        const float *others = (const float *)section_of(DECISIONS) + row * count;
        is_near &= fabs((double)agent.outputs[i] - (double)others[i]) <= tolerance;
    }
    const struct choice *c = section_of(CHOICES);
    const int32_t *others = (const int32_t *)section_of(DECISIONS) + (size_t)row * sizes->choices;
    for (uint32_t i = 0, from = 0; i < sizes->choices; from += (uint32_t)c[i++].count) {
        const int32_t chosen = find_largest(agent.outputs + from, c[i].count);
        is_same &= chosen == find_largest(expected + from, c[i].count), is_near &= chosen == others[i];
    }
    return is_same | is_near << 1;
}

/* What all golden vectors passed with: this program, on this device since it was switched on (the card may be copied
 * for another one), this artifact and these vectors. A file of it, whole and the same, is the proof of a later load. */
struct passed { char build[65], boot[40]; unsigned char artifact[32], vectors[4][32]; };

/* A file's first bytes, and how many; neither a link is followed nor a pipe waited for. */
static ssize_t read_first(const char *path, void *to, size_t room)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) return -1;
    const ssize_t n = read(file, to, room);
    close(file);
    return n;
}

/* Whether all vectors passed before with what is here, *now; the artifact's hash has been checked. */
static int has_passed(struct passed *now)
{
    static const enum section PARTS[] = {OBSERVATIONS, OUTPUTS, TOLERANCE, DECISIONS};
    struct passed kept;
    *now = (struct passed){.build = BUILD};
    if (!agent.passed) return 0;
    if (sizeof BUILD == 1 || read_first("/proc/sys/kernel/random/boot_id", now->boot, sizeof now->boot) <= 0)
        return agent.passed = NULL, 0; /* nothing would be proven */
    memcpy(now->artifact, section_of(SHA256), sizeof now->artifact);
    for (int i = 0; i < COUNT_OF(PARTS); i++) sha256(section_of(PARTS[i]), section_size(PARTS[i]), now->vectors[i]);
    return read_first(agent.passed, &kept, sizeof kept) == sizeof kept && !memcmp(&kept, now, sizeof kept);
}

/* Where it cannot be written, or only a part of it, the next load checks all again. */
static void keep_passed(const struct passed *now)
{
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    const int file = agent.passed ? open(agent.passed, flags, 0600) : -1;
    if (file >= 0) write_all(file, (const char *)now, sizeof *now), close(file);
}

/* So many golden vectors, spread over all; 0 where one is refused. */
static int check_golden(struct text *t, const struct request *r, struct native *engine, uint32_t count)
{
    uint32_t same = 0, same_as_float = 0, wrong = 0;
    double worst = -1.0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t row = (uint32_t)((uint64_t)i * sizes->rows / count);
        const int agrees = check_row(engine, row, &worst, &wrong);
        if (agrees < 0) {
            print(&fault, "golden vector %u, output %u is computed wrongly on this device.", row, wrong);
            return refuse(t, r, CODE_GOLDEN, "Deploy again, or convert the policy again.");
        }
        same += agrees & 1, same_as_float += (uint32_t)agrees >> 1;
    }
    golden.agreement = (double)same / count, golden.fp32_agreement = (double)same_as_float / count;
    golden.vectors = count;
    return 1;
}

/* Whether the request is for what the pack has; 0 where it is refused. */
static int check_load(struct text *t, const struct request *r)
{
    const struct value precision = member_of(&r->members, "precision"), runtime = member_of(&r->members, "runtime");
    char own[32] = {0};
    int64_t threads;
    memcpy(own, section_of(PRECISION), section_size(PRECISION) < sizeof own ? section_size(PRECISION) : sizeof own - 1);
    if (precision.kind == MISSING) {
        put(&fault, "load needs 'precision': one of " PRECISION_TEXT ".");
        return refuse(t, r, CODE_MISSING_FIELD, "For example: {\"op\": \"load\", \"precision\": \"int8\"}");
    }
    if (!is_one_of(precision, PRECISION_NAMES))
        return refuse_field(t, r, "precision", precision, "one of " PRECISION_TEXT);
    if (runtime.kind != MISSING && runtime.kind != NULL_VALUE && !is_string(runtime, "native")) {
        if (!is_one_of(runtime, RUNTIME_NAMES)) return refuse_field(t, r, "runtime", runtime, "one of " RUNTIME_TEXT);
        put(&fault, "this agent has one runtime, native.");
        return refuse(t, r, CODE_UNAVAILABLE, "Load it with \"runtime\": \"native\".");
    }
    if (member_of(&r->members, "threads").kind != NULL_VALUE) {
        if (!read_integer(t, r, "threads", 1, MAX_THREADS, 1, &threads)) return 0;
        if (threads != 1) {
            print(&fault, "threads is %lld; this agent decides with 1.", (long long)threads);
            return refuse(t, r, CODE_BAD_FIELD, "Load it with threads=1.");
        }
    }
    const int is_own = is_string(precision, own);
    if (!is_own) {
        put(&fault, "the bundle has no "), put_short(&fault, precision);
        print(&fault, " artifact here; it has %s.", own);
    }
    return is_own || refuse(t, r, CODE_BUNDLE, "Deploy this precision.");
}

/* An engine of the pack's artifact in memory of its own, NULL where it is refused. */
static struct native *open_engine(struct text *t, const struct request *r)
{
    const void *artifact = section_of(ARTIFACT);
    const size_t bytes = section_size(ARTIFACT), needed = native_memory(artifact, bytes);
    void *room = mmap(0, needed ? needed : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) {
        print(&fault, "there is no memory for the %zu bytes that the engine needs.", needed);
        return refuse(t, r, CODE_RUNTIME, "Deploy it in fewer bits."), NULL;
    }
    const enum native_error error = native_open(room, needed, artifact, bytes);
    if (!error) return room;
    munmap(room, needed ? needed : 1);
    print(&fault, "native cannot execute this artifact: it %s.", native_message(error));
    return refuse(t, r, CODE_RUNTIME, "Convert it again."), NULL;
}

/* Golden vectors are not needed until somebody measures: their pages may go. */
static void release_golden(void)
{
    const uintptr_t page = 4096, from = ((uintptr_t)section_of(OBSERVATIONS) + page - 1) & ~(page - 1);
    const uintptr_t to = ((uintptr_t)pack + pack->bytes) & ~(page - 1);
    if (to > from) madvise((void *)from, to - from, MADV_DONTNEED);
}

int answer_load(struct text *t, const struct request *r)
{
    unsigned char hash[32];
    struct passed now;
    if (!check_load(t, r)) return 0;
    const int64_t begin = now_ns();
    memory.loads++, memory.before_load = read_resident().now;
    sha256(section_of(ARTIFACT), section_size(ARTIFACT), hash);
    if (memcmp(hash, section_of(SHA256), sizeof hash)) {
        put(&fault, "the artifact is not the one that was converted: its hash is another.");
        return refuse(t, r, CODE_BUNDLE, "Deploy the policy again.");
    }
    const int is_known = has_passed(&now);
    const int64_t verified = now_ns();
    const size_t needed = native_memory(section_of(ARTIFACT), section_size(ARTIFACT));
    struct native *const engine = open_engine(t, r);
    if (!engine) return 0;
    const int64_t built = now_ns();
    native_decide(engine, section_of(OBSERVATIONS), agent.outputs);
    const int64_t first = now_ns();
    const uint32_t count = is_known && sizes->rows > FEW_VECTORS ? FEW_VECTORS : sizes->rows;
    if (!check_golden(t, r, engine, count)) return munmap(engine, needed), 0;
    if (!is_known) keep_passed(&now);
    if (agent.engine) munmap(agent.engine, needed); /* an earlier one, of the same artifact */
    agent.engine = engine;
    cold.verify = verified - begin, cold.build = built - verified, cold.first = first - built;
    cold.golden = now_ns() - first, cold.total = now_ns() - begin;
    release_golden();
    memory.after_load = read_resident().now;
    put_head(t, r, 1);
    put(t, ",\"loaded\":"), put_section(t, LOADED);
    print(t, ",\"golden\":{\"vectors\":%u,\"max_error\":", golden.vectors), put_double(t, golden.error);
    put(t, ",\"max_error_steps\":");
    if (*(const float *)section_of(STEPS) > 0) put_double(t, golden.steps);
    else put(t, "null"); /* floats have no steps */
    put(t, ",\"tolerance\":"), put_double(t, golden.tolerance);
    put(t, ",\"action_agreement\":"), put_double(t, golden.agreement);
    put(t, ",\"fp32_agreement\":"), put_double(t, golden.fp32_agreement), put(t, "},"), put_memory(t);
    print(t, ",\"cold\":{\"import_ns\":0,\"verify_ns\":%lld,\"build_ns\":%lld,\"first_ns\":%lld,\"golden_ns\":%lld,"
             "\"total_ns\":%lld}}\n", (long long)cold.verify, (long long)cold.build, (long long)cold.first,
          (long long)cold.golden, (long long)cold.total);
    return 1;
}

/* ---- latency and memory ------------------------------------------------------------------------------------------ */

static void report_progress(const char *op, int64_t done, int64_t total)
{
    char room[160];
    struct text t = text_of(room, sizeof room);
    print(&t, "{\"progress\":{\"op\":\"%s\",\"done\":%lld,\"total\":%lld}}\n", op, (long long)done, (long long)total);
    write_all(1, room, text_size(&t));
}

/* What is timed: decisions on golden observations, or lines of the pack's that ask for them. */
static struct { int through_lines; size_t length; char line[MAX_LINE + LINE_SLACK], reply[REPLY_ROOM]; } call;

static void prepare_call(uint32_t number)
{
    if (!call.through_lines) return;
    const char *s = section_of(LINES), *const end = s + section_size(LINES);
    for (number %= sizes->lines; number && s < end; s++) number -= *s == '\n';
    const char *const stop = memchr(s, '\n', (size_t)(end - s));
    call.length = stop && stop - s <= MAX_LINE ? (size_t)(stop - s) : 0;
    memcpy(call.line, s, call.length), call.line[call.length] = '\n';
}

static void call_once(uint32_t number)
{
    if (call.through_lines) {
        struct text t = text_of(call.reply, sizeof call.reply);
        answer(&t, call.line, call.line + call.length);
        return;
    }
    const float *rows = section_of(OBSERVATIONS);
    native_decide(agent.engine, rows + (size_t)(number % sizes->rows) * sizes->observation, agent.outputs);
    agent.decisions++;
}

static void warm_up(int64_t runs)
{
    for (int64_t i = 0; i < runs; i++) prepare_call((uint32_t)i), call_once((uint32_t)i);
}

/* Time this many calls into times[runs]; the bits of the throttle word that were set meanwhile. */
static long time_calls(uint32_t *times, int64_t runs, long *word)
{
    long during = 0;
    int64_t chunk = now_ns() + CHUNK_NS, due = now_ns() + PROGRESS_INTERVAL_NS;
    for (int64_t i = 0; i < runs; i++) {
        prepare_call((uint32_t)i);
        const int64_t from = now_ns();
        COUNT_FROM_HERE;
        call_once((uint32_t)i);
        COUNT_TO_HERE;
        const int64_t to = now_ns();
        times[i] = to - from > UINT32_MAX ? UINT32_MAX : (uint32_t)(to - from);
        if (to < chunk || i + 1 == runs) continue;
        const long now = read_throttle_word();
        if (now >= 0) during |= now & 15, *word = now;
        if (to > due) report_progress("latency", i + 1, runs), due = to + PROGRESS_INTERVAL_NS;
        const int64_t before = agent.decisions;
        warm_up(REWARM_RUNS);
        agent.decisions = before;
        chunk = now_ns() + CHUNK_NS;
    }
    return during;
}

static uint32_t measure_timer(void)
{
    uint32_t pairs[TIMER_PAIRS];
    for (int i = 0; i < TIMER_PAIRS; i++) {
        const int64_t from = now_ns();
        pairs[i] = (uint32_t)(now_ns() - from);
    }
    sort(pairs, TIMER_PAIRS);
    return pairs[TIMER_PAIRS / 2];
}

int answer_latency(struct text *t, const struct request *r)
{
    int64_t warmup, runs;
    const struct value path = member_of(&r->members, "path");
    if (!read_integer(t, r, "warmup", 0, MAX_RUNS, LATENCY_WARMUP, &warmup)) return 0;
    if (!read_integer(t, r, "runs", 1, MAX_RUNS, LATENCY_RUNS, &runs)) return 0;
    if (path.kind != MISSING && !is_one_of(path, PATH_NAMES))
        return refuse_field(t, r, "path", path, "one of " PATH_TEXT);
    if (!agent.engine) return refuse_unloaded(t, r);
    char rooms[2][2048];
    struct text before = text_of(rooms[0], sizeof rooms[0]), after = text_of(rooms[1], sizeof rooms[1]);
    struct rusage usage, used;
    uint32_t *const times = malloc((size_t)runs * sizeof *times);
    if (!times) abort();
    call.through_lines = is_string(path, "decide");
    const long word = put_conditions(&before);
    long last = word;
    getrusage(RUSAGE_SELF, &usage);
    warm_up(warmup);
    long during = (word < 0 ? 0 : word & 15) | time_calls(times, runs, &last);
    getrusage(RUSAGE_SELF, &used);
    const long end_word = put_conditions(&after);
    if (end_word >= 0) during |= end_word & 15, last = end_word;
    if (word >= 0) during |= last >> 16 & ~(word >> 16) & 15;
    sort(times, (int)runs);
    begin_fault();
    put_head(t, r, 1);
    put(t, ",\"loaded\":"), put_section(t, LOADED);
    print(t, ",\"path\":\"%s\",\"warmup\":%lld,\"cold_first_ns\":%lld,\"load_ns\":%lld,",
          call.through_lines ? "decide" : "runtime", (long long)warmup, (long long)cold.first, (long long)cold.total);
    put_statistics(t, times, (int)runs);
    free(times);
    print(t, ",\"timer\":{\"overhead_ns\":%u,\"resolution_ns\":1.0,\"clock\":\"clock_gettime(CLOCK_MONOTONIC)\"}",
          measure_timer());
    put(t, ",\"before\":{"), put_bytes(t, before.begin, text_size(&before));
    put(t, "},\"after\":{"), put_bytes(t, after.begin, text_size(&after));
    print(t, "},\"context_switches\":{\"voluntary\":%ld,\"involuntary\":%ld},", used.ru_nvcsw - usage.ru_nvcsw,
          used.ru_nivcsw - usage.ru_nivcsw);
    print(t, "\"page_faults\":{\"minor\":%ld,\"major\":%ld},", used.ru_minflt - usage.ru_minflt,
          used.ru_majflt - usage.ru_majflt);
    put(t, during ? "\"valid\":false,\"invalid_reasons\":[" : "\"valid\":true,\"invalid_reasons\":[");
    for (int i = 0, any = 0; i < THROTTLE_COUNT; i++)
        if (during >> i & 1) print(t, "%s\"%s during the measurement\"", any++ ? "," : "", THROTTLE_NAMES[i]);
    put(t, "],\"notes\":[]}\n");
    return 1;
}

int answer_memory(struct text *t, const struct request *r)
{
    int64_t runs;
    if (!read_integer(t, r, "runs", 1, MAX_RUNS, MEMORY_RUNS, &runs)) return 0;
    if (!agent.engine) return refuse_unloaded(t, r);
    const int64_t peak = read_resident().peak;
    if (peak > memory.lifetime_peak) memory.lifetime_peak = peak;
    memory.was_reset = reset_peak();
    call.through_lines = 0;
    for (int64_t i = 0; i < runs; i++) call_once((uint32_t)i);
    memory.running_peak = read_resident().peak;
    put_head(t, r, 1);
    put(t, ",\"loaded\":"), put_section(t, LOADED), put_char(t, ','), put_memory(t);
    print(t, ",\"artifact_bytes\":%zu,\"runs\":%lld}\n", section_size(ARTIFACT), (long long)runs);
    return 1;
}
