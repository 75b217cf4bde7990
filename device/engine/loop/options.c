#include <string.h>

#include "agent/number.h"
#include "internal.h"

/* The decimal number that a text is as a whole; 0 where it is none. */
static int read_real(const char *s, size_t n, double *to)
{
    char number[64 + LINE_SLACK] = {0};
    const char *why, *end;
    int is_whole;
    if (n && *s == '+') s++, n--;
    if (!n || n >= 64) return 0;
    memcpy(number, s, n);
    const struct value value = read_value(number, number + n, 0, &why);
    if (value.kind != NUMBER || value.end != number + n) return 0;
    if (!is_digit(number + (*number == '-'), number + n)) return 0; /* NaN, Infinity */
    *to = read_number(number, &end, &is_whole);
    return 1;
}

static int refuse_option(struct text *why, const char *name, const char *value, const char *allowed)
{
    print(why, "argument --%s: '%s'; allowed is %s", name, value, allowed);
    return 0;
}

static int read_range(struct text *why, const char *name, const char *value, double low, double high, int is_whole,
                      const char *allowed, double *to)
{
    int is_good = read_real(value, strlen(value), to) && *to >= low && *to <= high;
    if (is_whole) is_good &= strspn(value, "0123456789") == strlen(value);
    return is_good || refuse_option(why, name, value, allowed);
}

static int read_choice(struct text *why, const char *name, const char *value, const char *const *choices,
                       const char *allowed, int *to)
{
    for (*to = 0; choices[*to]; ++*to) if (!strcmp(choices[*to], value)) return 1;
    return refuse_option(why, name, value, allowed);
}

int read_numbers(const char *s, double *to, uint32_t room)
{
    uint32_t count = 0;
    for (;; s++) {
        double x;
        const size_t n = strcspn(s, ",");
        if (!read_real(s, n, &x)) return 0;
        if (count < room) to[count] = x;
        count++, s += n;
        if (!*s) return (int)count;
    }
}

/* One option; 0 where it is refused. */
static int read_option(struct loop_options *o, const char *word, size_t n, const char *value, struct text *why)
{
    int choice;
    double x;
#define IS(name) equals(name, word, n)
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
        return read_numbers(value, &x, 1)
               || refuse_option(why, "fallback", value, "an action's index, or numbers: 0,0,0");
    }
    print(why, "unrecognized argument: --%.*s", (int)n, word);
    return 0;
}

int loop_read_options(int count, char *const *words, struct loop_options *o, int *help, char *why, size_t room)
{
    struct text t = text_of(why, room - 1);
    int is_good = 1;
    *o = (struct loop_options){.release = "", .core = -1, LOOP_DEFAULTS};
    *help = 0;
    for (int i = 0; i < count && is_good; i++) {
        const char *const word = words[i], *value = strchr(word, '=');
        if (!strcmp(word, "--help") || !strcmp(word, "-h")) return *help = 1;
        const size_t n = value ? (size_t)(value - word) : strlen(word);
        if (n < 3 || strncmp(word, "--", 2)) is_good = 0, print(&t, "unrecognized argument: %s", word);
        else if (!value && i + 1 == count) is_good = 0, print(&t, "argument %s: a value is missing", word);
        else is_good = read_option(o, word + 2, n - 2, value ? value + 1 : words[++i], &t);
    }
    if (is_good && !o->socket) is_good = 0, put(&t, "the following argument is required: --socket");
    *t.at = 0;
    return is_good;
}

const char *loop_usage(void)
{
    return "run-agent loop --socket=PATH [--option=VALUE ...]: serve the policy in a robot's loop.\n"
           "  --socket: path of the SEQPACKET socket that is made\n"
           LOOP_TEXT
           "  --precision: which artifact (default int8)\n"
           "  --runtime: what executes it (default: the preferred one that is here)\n"
           "  --release: name of what is served\n";
}
