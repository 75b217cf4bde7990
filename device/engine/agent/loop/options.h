/* The options of a loop, each as --name=value: those of device/agent/loop/options.py, with the same limits. */
#ifndef AGENT_LOOP_OPTIONS_H
#define AGENT_LOOP_OPTIONS_H
#include "../json.h"
#include "../number.h"
#include "../text.h"

struct options {
    const char *socket, *precision, *runtime, *release, *fallback; /* 0 or "" where they are not given */
    double rate, deadline_ms, stale_ms, hold_for_ms; /* 0 where they are not given */
    int pace, on_miss, priority, core, spin_us, threads; /* core: -1 for any */
};

static const char OPTIONS_TEXT[] =
    "policy-agent policy.pack loop --socket=PATH [--option=VALUE ...]: serve the policy in a robot's loop.\n"
    "  --socket=: path of the SEQPACKET socket that is made\n"
    LOOP_TEXT
    "  --precision=, --runtime=native: as the pack has them\n"
    "  --release=: name of what is served\n";

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
                      const char *allowed, double *to)
{
    *to = -1.0;
    int good = read_real(value, length_of(value), to) && *to >= low && *to <= high;
    for (const char *s = value; is_whole && *s; s++) good &= *s >= '0' && *s <= '9';
    return good || refuse_option(why, name, value, allowed);
}

static int read_choice(struct text *why, const char *name, const char *value, const char *const *choices,
                       const char *allowed, int *to)
{
    for (*to = 0; choices[*to]; ++*to) if (equals(choices[*to], value, length_of(value))) return 1;
    return refuse_option(why, name, value, allowed);
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
    const char *value = word;
    int choice;
    double x;
    while (*value && *value != '=') value++;
    const size_t n = word[0] == '-' && word[1] == '-' && *value ? (size_t)(value++ - word - 2) : 0;
#define IS(name) equals(name, word + 2, n)
#define READ_RANGE(field, name, low, high, is_whole) \
    if (IS(name)) \
        return read_range(why, name, value, low, high, is_whole, \
                          is_whole ? "an integer from " #low " to " #high : "a number from " #low " to " #high, &x) \
               && (o->field = x, 1);
#define READ_CHOICE(name, LIST, to) \
    if (IS(name)) return read_choice(why, name, value, LIST##_NAMES, "one of " LIST##_TEXT, to);
    EACH_LOOP_RANGE(READ_RANGE)
    READ_CHOICE("pace", PACE, &o->pace)
    READ_CHOICE("on-miss", ON_MISS, &o->on_miss)
    if (IS("precision")) o->precision = value;
    READ_CHOICE("precision", PRECISION, &choice)
    if (IS("runtime")) o->runtime = value;
    READ_CHOICE("runtime", RUNTIME, &choice)
    if (IS("release")) return o->release = value, 1;
    if (IS("socket")) {
        o->socket = value;
        return *value == '/' || refuse_option(why, "socket", value, "a whole path: /run/user/1000/III.sock");
    }
    if (IS("fallback")) {
        o->fallback = value;
        return read_numbers(value, &x, 1) || refuse_option(why, "fallback", value, "an action's index, or numbers: 0,0,0");
    }
    return put(why, "unrecognized argument: "), put(why, word), put(why, "; each is --name=value"), 0;
}
#endif
