#include <string.h>

#include "internal.h"

static const char *const TIME_NAMES[] = {"woke_late", "decided", "runtime", "answered", "sent_late", "age", "jitter"};

/* As in an HDR histogram: a value is known to 3 %. Negative ones count as 0. */
void add_duration(struct histogram *h, int64_t ns)
{
    if (ns < 0) ns = 0;
    if (ns > h->largest) h->largest = ns;
    if (ns > LARGEST_DURATION) ns = LARGEST_DURATION;
    const int shift = (ns ? 64 - __builtin_clzll((uint64_t)ns) : 0) - SUB_BITS - 1;
    const int i = shift <= 0 ? (int)ns : (shift << SUB_BITS) + (int)(ns >> shift);
    if (!h->count++) h->first = i, h->end = i + 1;
    if (i < h->first) h->first = i;
    if (i >= h->end) h->end = i + 1;
    h->bucket[i]++;
}

/* Only what is not 0 is written: a page that nothing was counted in stays untouched. */
static void clear_histogram(struct histogram *h)
{
    for (int i = h->first; i < h->end; i++) if (h->bucket[i]) h->bucket[i] = 0;
    h->count = h->largest = h->first = h->end = 0;
}

/* The largest duration, inclusive, that falls into a bucket. */
static int64_t upper_edge(int i)
{
    if (i < 2 << SUB_BITS) return i;
    const int shift = (i >> SUB_BITS) - 1;
    return ((int64_t)(i - (shift << SUB_BITS) + 1) << shift) - 1;
}

/* The smallest edge that at least q / 1000000 of all durations do not exceed; 0 where there are none. */
static int64_t quantile(const struct histogram *h, int q)
{
    uint64_t seen = 0;
    for (int i = h->first; i < h->end; i++) {
        seen += h->bucket[i];
        if (h->bucket[i] && seen * 1000000 >= (uint64_t)h->count * (uint64_t)q)
            return upper_edge(i) < h->largest ? upper_edge(i) : h->largest;
    }
    return 0;
}

static void put_count(struct text *t, const char *key, int64_t n) { put(t, key), put_signed(t, n); }

static void put_histogram(struct text *t, const struct histogram *h)
{
    put_count(t, "{\"count\":", h->count), put(t, ",\"percentiles\":{");
    for (int i = 0, any = 0; i < COUNT_OF(PERCENTILES); i++) {
        if (h->count < PERCENTILES[i].needed) continue;
        put(t, any++ ? ",\"" : "\""), put(t, PERCENTILES[i].name);
        put_count(t, "\":", quantile(h, PERCENTILES[i].millionths));
    }
    put_count(t, "},\"max\":", h->largest), put(t, ",\"buckets\":[");
    for (int i = h->first, any = 0; i < h->end; i++) {
        if (!h->bucket[i]) continue;
        put_count(t, any++ ? ",[" : "[", upper_edge(i)), put_count(t, ",", (int64_t)h->bucket[i]), put_char(t, ']');
    }
    put(t, "]}");
}

/* Begin again; what was missed since the loop began stays counted. */
void reset_punctuality(struct punctuality *p)
{
    for (int i = 0; i < TIME_COUNT; i++) clear_histogram(&p->time[i]);
    memset(p->flags, 0, sizeof p->flags);
    p->ticks = p->skipped = p->late = p->hold_expired = 0;
    p->since_ns = now_ns();
    getrusage(RUSAGE_SELF, &p->usage);
}

void count_missed(struct punctuality *p, int64_t late, int64_t skipped)
{
    p->late += late, p->skipped += skipped, p->missed_ever += late + skipped;
}

static double seconds_of(struct timeval t) { return (double)t.tv_sec + (double)t.tv_usec / 1e6; }

void put_punctuality(struct text *t, const struct punctuality *p)
{
    const int64_t due = p->ticks + p->skipped, lost = p->late + p->skipped;
    const struct rusage *from = &p->usage;
    struct rusage to;
    getrusage(RUSAGE_SELF, &to);
    put(t, "{\"seconds\":"), put_double(t, (double)(now_ns() - p->since_ns) / 1e9);
    put_count(t, ",\"ticks\":", p->ticks), put_count(t, ",\"skipped\":", p->skipped);
    put_count(t, ",\"late\":", p->late), put(t, ",\"missed_per_million\":");
    if (due) put_double(t, (double)lost * 1e6 / (double)due);
    else put(t, "null");
    for (int i = 0; i < COUNT_OF(COUNTED); i++) {
        uint64_t n = 0;
        for (unsigned flags = 0; flags < 256; flags++) if (flags & (unsigned)COUNTED[i].bit) n += p->flags[flags];
        put(t, ",\""), put(t, COUNTED[i].name), put_count(t, "\":", (int64_t)n);
    }
    put_count(t, ",\"hold_expired\":", p->hold_expired);
    for (int i = 0; i < TIME_COUNT; i++)
        put(t, ",\""), put(t, TIME_NAMES[i]), put(t, "_ns\":"), put_histogram(t, &p->time[i]);
    put_count(t, ",\"page_faults\":{\"minor\":", to.ru_minflt - from->ru_minflt);
    put_count(t, ",\"major\":", to.ru_majflt - from->ru_majflt);
    put_count(t, "},\"context_switches\":{\"voluntary\":", to.ru_nvcsw - from->ru_nvcsw);
    put_count(t, ",\"involuntary\":", to.ru_nivcsw - from->ru_nivcsw);
    put(t, "},\"cpu_s\":");
    put_double(t, seconds_of(to.ru_utime) + seconds_of(to.ru_stime) - seconds_of(from->ru_utime)
                      - seconds_of(from->ru_stime));
    put_char(t, '}');
}
