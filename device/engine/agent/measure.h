/* Run times, and what may be said of them: as device/agent/measure.py, whose words and numbers these are. */
#ifndef AGENT_MEASURE_H
#define AGENT_MEASURE_H
#ifdef __aarch64__                  /* bench/qemu_counter counts between these; to a processor they are no-ops */
#define COUNT_FROM_HERE __asm__ volatile("hint #0x60" ::: "memory")
#define COUNT_TO_HERE __asm__ volatile("hint #0x61" ::: "memory")
#else
#define COUNT_FROM_HERE
#define COUNT_TO_HERE
#endif
#include "constants.h"
#include "text.h"

static void sift(uint32_t *x, int from, int n)
{
    for (int child; (child = 2 * from + 1) < n; from = child) {
        if (child + 1 < n && x[child] < x[child + 1]) child++;
        if (x[from] >= x[child]) return;
        const uint32_t t = x[from];
        x[from] = x[child], x[child] = t;
    }
}

static void sort(uint32_t *x, int n)
{
    for (int i = n / 2 - 1; i >= 0; i--) sift(x, i, n);
    for (int i = n - 1; i > 0; i--) {
        const uint32_t t = x[0];
        x[0] = x[i], x[i] = t;
        sift(x, 0, i);
    }
}

/* The smallest value that at least a share of q / 1000000 of all do not exceed. */
static uint32_t percentile(const uint32_t *sorted, int n, int q)
{
    const int rank = (int)(((int64_t)n * q + 999999) / 1000000);
    return sorted[rank > 1 ? rank - 1 : 0];
}

/* k of the order statistics k and n - k + 1 that hold the median with 95 %: the largest with P(B < k) <= 2.5 %, B binomial
 * (n, 1/2); 0 where there is none. Terms are counted in units of the middle one. */
static int median_rank(int n)
{
    const int middle = n / 2;
    double total = 0.0, term = 1.0;
    int lowest = middle;
    for (int i = middle; i >= 0 && term > 1e-30; i--) total += (n - i == i ? 1.0 : 2.0) * term, lowest = i, term *= (double)i / (n - i + 1);
    /* The lowest term again, and upwards. */
    term = 1.0;
    for (int i = middle; i > lowest; i--) term *= (double)i / (n - i + 1);
    double below = 0.0;
    int k = lowest;
    while (k < middle && below + term <= (1.0 - INTERVAL_CONFIDENCE) / 2.0 * total) below += term, term *= (double)(n - k) / (k + 1), k++;
    return k;
}

static void put_statistics(struct text *t, const uint32_t *sorted, int n)
{
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < n; i++) sum += sorted[i];
    const double mean = sum / n;
    for (int i = 0; i < n; i++) squares += (sorted[i] - mean) * (sorted[i] - mean);
    put(t, "\"runs\":"), put_signed(t, n);
    for (int withheld = 0; withheld < 2; withheld++) {
        put(t, withheld ? "},\"percentiles_withheld\":{" : ",\"percentiles\":{");
        for (int i = 0, any = 0; i < COUNT_OF(PERCENTILES); i++) {
            if ((n < PERCENTILES[i].needed) != withheld) continue;
            if (any++) put_char(t, ',');
            put_char(t, '"'), put(t, PERCENTILES[i].name), put(t, "\":");
            if (!withheld) put_unsigned(t, percentile(sorted, n, PERCENTILES[i].millionths));
            else put(t, "\"needs "), put_signed(t, PERCENTILES[i].needed), put(t, " runs, there are "), put_signed(t, n), put_char(t, '"');
        }
    }
    const int k = median_rank(n);
    put(t, "},\"p50_interval\":");
    if (k) put_char(t, '['), put_unsigned(t, sorted[k - 1]), put_char(t, ','), put_unsigned(t, sorted[n - k]), put_char(t, ']');
    else put(t, "null");
    put(t, ",\"mean\":"), put_double(t, mean);
    put(t, ",\"std\":"), put_double(t, __builtin_sqrt(squares / (n > 1 ? n - 1 : 1)));
    put(t, ",\"min\":"), put_unsigned(t, sorted[0]), put(t, ",\"max\":"), put_unsigned(t, sorted[n - 1]);
    put(t, ",\"samples_ns\":[");
    const int kept = n < MAX_SAMPLES ? n : MAX_SAMPLES;
    for (int i = 0; i < kept; i++) {
        if (i) put_char(t, ',');
        put_unsigned(t, sorted[kept < n ? (int)((2 * (int64_t)i * (n - 1) + kept - 1) / (2 * (kept - 1))) : i]);
    }
    put_char(t, ']');
}
#endif
