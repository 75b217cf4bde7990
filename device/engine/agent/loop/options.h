/* The options of a loop, each as --name=value: those of device/agent/loop/options.py, with the same limits. */
#ifndef AGENT_LOOP_OPTIONS_H
#define AGENT_LOOP_OPTIONS_H
#include "../json.h"
#include "../number.h"
#include "../text.h"

enum pace { CLOCK_PACE, OBSERVATION_PACE };
enum on_miss { MISS_HOLD, MISS_FALLBACK, MISS_STOP };
static const char *const PACES[] = {"clock", "observation", 0}, *const MISSES[] = {"hold", "fallback", "stop", 0};
static const char *const RUNTIMES[] = {"litert", "tflite-runtime", "onnxruntime", "native", 0};
static const char *const PRECISIONS[] = {
    "fp32", "fp16", "int8", "int7", "int6", "int5", "int4", "int3", "int2", "mixed", 0,
};

struct options {
    const char *socket, *precision, *runtime, *release, *fallback; /* 0 or "" where they are not given */
    double rate, deadline_ms, stale_ms, hold_for_ms; /* 0 where they are not given */
    int pace, on_miss, priority, core, spin_us, threads; /* core: -1 for any */
};

static const char OPTIONS_TEXT[] =
    "policy-agent policy.pack loop --socket=PATH [--option=value ...]: serve the policy in a robot's loop.\n"
    "  --socket=PATH           of the SEQPACKET socket that is made, a whole path\n"
    "  --rate=HZ               decisions a second, 0.01 to 2000; default: the policy's own\n"
    "  --deadline-ms=MS        an action is late after this; default: a period\n"
    "  --stale-ms=MS           an observation is stale then; default: 2.5 periods\n"
    "  --pace=clock|observation, --on-miss=hold|fallback|stop\n"
    "  --hold-for-ms=MS        with hold, the fallback follows then; default: 5 periods\n"
    "  --fallback=ACTION       index or numbers: 0,0,0; default: the policy's own\n"
    "  --priority=50           of SCHED_FIFO, 0: the ordinary scheduler\n"
    "  --core=N, --spin-us=US  the only core to run on; poll so long before each wait ends\n"
    "  --precision=, --runtime=native, --threads=1: as the pack has them\n"
    "  --release=NAME          of what is served\n";

/* The decimal number that a text is as a whole; 0 where it is none. */
static int read_real(const char *s, size_t n, double *to)
{
    int whole;
    if (n && *s == '+') s++, n--;
    const int is_begun = n && (is_digit(s, s + n) || (*s == '-' && is_digit(s + 1, s + n)));
    if (!is_begun || behind_number(s, s + n) != s + n) return 0;
    *to = read_number(s, s + n, &whole);
    return 1;
}

/* What is wrong with a value is written, as the option's name and what is allowed. */
static int refuse_option(struct text *why, const char *name, const char *value, const char *allowed)
{
    put(why, "argument --"), put(why, name), put(why, ": '"), put(why, value);
    put(why, "'; allowed is "), put(why, allowed);
    return 0;
}

static int read_range(struct text *why, const char *name, const char *value, double low, double high, int is_whole,
                      double *to)
{
    double x = -1.0;
    int good = read_real(value, length_of(value), &x) && x >= low && x <= high;
    for (const char *s = value; is_whole && *s; s++) good &= *s >= '0' && *s <= '9';
    *to = x;
    if (good) return 1;
    char room[80];
    struct text t = {room, room, room + sizeof room - 1};
    put(&t, is_whole ? "an integer from " : "a number from ");
    if (low > 0.0 && low < 1.0) put(&t, "0.01");
    else put_unsigned(&t, (uint64_t)low);
    put(&t, " to "), put_unsigned(&t, (uint64_t)high), *t.at = 0;
    return refuse_option(why, name, value, room);
}

static int read_choice(struct text *why, const char *name, const char *value, const char *const *choices, int *to)
{
    char room[120];
    struct text t = {room, room, room + sizeof room - 1};
    for (int i = 0; choices[i]; i++) {
        if (equals(choices[i], value, length_of(value))) {
            *to = i;
            return 1;
        }
        put(&t, i ? ", " : "one of "), put(&t, choices[i]);
    }
    *t.at = 0;
    return refuse_option(why, name, value, room);
}

static int read_whole(struct text *why, const char *name, const char *value, int low, int high, int *to)
{
    double x;
    if (!read_range(why, name, value, low, high, 1, &x)) return 0;
    *to = (int)x;
    return 1;
}

/* Numbers with commas between them: how many there are, 0 where it is no such list; only those that fit are kept. */
static uint32_t read_numbers(const char *s, double *to, uint32_t room)
{
    uint32_t count = 0;
    for (;;) {
        size_t n = 0;
        double x;
        while (s[n] && s[n] != ',') n++;
        if (!read_real(s, n, &x)) return 0;
        if (count < room) to[count] = x;
        count++;
        if (!s[n]) return count;
        s += n + 1;
    }
}

/* One option; 0 where it is refused. */
static int read_option(struct options *o, const char *word, struct text *why)
{
    static const char *const NAMES[] = {"socket", "precision", "runtime", "release", "fallback", "rate", "deadline-ms",
                                        "stale-ms", "pace", "on-miss", "priority", "core", "spin-us", "threads",
                                        "hold-for-ms", 0};
    const char *value = word;
    const char *const an_action = "an action's index, or numbers: 0,0,0";
    int which = 0, choice;
    double x;
    while (*value && *value != '=') value++;
    if (word[0] == '-' && word[1] == '-' && *value)
        while (NAMES[which] && !equals(NAMES[which], word + 2, (size_t)(value - word - 2))) which++;
    else which = sizeof NAMES / sizeof *NAMES - 1;
    value += *value == '=';
    switch (which) {
    case 0:
        o->socket = value;
        return *value == '/' || refuse_option(why, "socket", value, "a whole path: /run/user/1000/III.sock");
    case 1: return o->precision = value, read_choice(why, "precision", value, PRECISIONS, &choice);
    case 2: return o->runtime = value, read_choice(why, "runtime", value, RUNTIMES, &choice);
    case 3: return o->release = value, 1;
    case 4:
        o->fallback = value;
        return read_numbers(value, &x, 1) || refuse_option(why, "fallback", value, an_action);
    case 5: return read_range(why, "rate", value, 0.01, 2000, 0, &o->rate);
    case 6: return read_range(why, "deadline-ms", value, 0.01, 1000000, 0, &o->deadline_ms);
    case 7: return read_range(why, "stale-ms", value, 0.01, 1000000, 0, &o->stale_ms);
    case 8: return read_choice(why, "pace", value, PACES, &o->pace);
    case 9: return read_choice(why, "on-miss", value, MISSES, &o->on_miss);
    case 10: return read_whole(why, "priority", value, 0, 99, &o->priority);
    case 11: return read_whole(why, "core", value, 0, 1023, &o->core);
    case 12: return read_whole(why, "spin-us", value, 0, 1000000, &o->spin_us);
    case 13: return read_whole(why, "threads", value, 1, 64, &o->threads);
    case 14: return read_range(why, "hold-for-ms", value, 0.01, 1000000, 0, &o->hold_for_ms);
    default: return put(why, "unrecognized argument: "), put(why, word), put(why, "; each is --name=value"), 0;
    }
}
#endif
