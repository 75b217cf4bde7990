/* A histogram of nanoseconds that never grows: the buckets of device/agent/loop/histogram.py. */
#ifndef AGENT_LOOP_HISTOGRAM_H
#define AGENT_LOOP_HISTOGRAM_H
#include "../measure.h"
#include "../text.h"

struct histogram {
    int64_t count, largest;         /* the largest exactly */
    int first, end;                 /* buckets outside are 0, and their memory need not be there */
    uint64_t bucket[BUCKETS];
};

static void add_duration(struct histogram *h, int64_t ns)
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

static void put_histogram(struct text *t, const struct histogram *h)
{
    put(t, "{\"count\":"), put_signed(t, h->count), put(t, ",\"percentiles\":{");
    for (int i = 0, any = 0; i < COUNT_OF(PERCENTILES); i++) {
        if (h->count < PERCENTILES[i].needed) continue;
        put(t, any++ ? ",\"" : "\""), put(t, PERCENTILES[i].name), put(t, "\":"), put_signed(t, quantile(h, PERCENTILES[i].millionths));
    }
    put(t, "},\"max\":"), put_signed(t, h->largest), put(t, ",\"buckets\":[");
    for (int i = h->first, any = 0; i < h->end; i++) {
        if (!h->bucket[i]) continue;
        put(t, any++ ? ",[" : "["), put_signed(t, upper_edge(i)), put_char(t, ',');
        put_unsigned(t, h->bucket[i]), put_char(t, ']');
    }
    put(t, "]}");
}
#endif
