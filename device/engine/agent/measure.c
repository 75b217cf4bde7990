#include "measure.h"

#include <math.h>
#include <stdlib.h>

#include "constants.h"

static int compare(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* musl's qsort is smoothsort: in place, and n log n at most. */
void sort(uint32_t *x, int n) { qsort(x, (size_t)n, sizeof *x, compare); }

/* The smallest value that at least a share of q / 1000000 of all do not exceed. */
static uint32_t percentile(const uint32_t *sorted, int n, int q)
{
    const int rank = (int)(((int64_t)n * q + 999999) / 1000000);
    return sorted[rank > 1 ? rank - 1 : 0];
}

/* k of the order statistics k and n - k + 1 that hold the median with 95 %: the largest with P(B < k) <= 2.5 %, B
 * binomial (n, 1/2); 0 where there is none. Terms are counted in units of the middle one. */
static int median_rank(int n)
{
    const int middle = n / 2;
    double total = 0.0, term = 1.0;
    int lowest = middle;
    for (int i = middle; i >= 0 && term > 1e-30; i--) {
        total += (n - i == i ? 1.0 : 2.0) * term, lowest = i;
        term *= (double)i / (n - i + 1);
    }
    /* The lowest term again, and upwards. */
    term = 1.0;
    for (int i = middle; i > lowest; i--) term *= (double)i / (n - i + 1);
    double below = 0.0;
    int k = lowest;
    for (; k < middle && below + term <= (1.0 - INTERVAL_CONFIDENCE) / 2.0 * total; k++)
        below += term, term *= (double)(n - k) / (k + 1);
    return k;
}

void put_statistics(struct text *t, const uint32_t *sorted, int n)
{
    double sum = 0.0, squares = 0.0;
    for (int i = 0; i < n; i++) sum += sorted[i];
    const double mean = sum / n;
    for (int i = 0; i < n; i++) squares += (sorted[i] - mean) * (sorted[i] - mean);
    print(t, "\"runs\":%d", n);
    for (int is_withheld = 0; is_withheld < 2; is_withheld++) {
        put(t, is_withheld ? "},\"percentiles_withheld\":{" : ",\"percentiles\":{");
        for (int i = 0, any = 0; i < COUNT_OF(PERCENTILES); i++) {
            const int needed = PERCENTILES[i].needed;
            if ((n < needed) != is_withheld) continue;
            print(t, "%s\"%s\":", any++ ? "," : "", PERCENTILES[i].name);
            if (is_withheld) print(t, "\"needs %d runs, there are %d\"", needed, n);
            else put_unsigned(t, percentile(sorted, n, PERCENTILES[i].millionths));
        }
    }
    const int k = median_rank(n);
    put(t, "},\"p50_interval\":");
    if (k) print(t, "[%u,%u]", sorted[k - 1], sorted[n - k]);
    else put(t, "null");
    put(t, ",\"mean\":"), put_double(t, mean);
    put(t, ",\"std\":"), put_double(t, sqrt(squares / (n > 1 ? n - 1 : 1)));
    print(t, ",\"min\":%u,\"max\":%u,\"samples_ns\":[", sorted[0], sorted[n - 1]);
    const int kept = n < MAX_SAMPLES ? n : MAX_SAMPLES;
    for (int i = 0; i < kept; i++) {
        if (i) put_char(t, ',');
        put_unsigned(t, sorted[kept < n ? (int)((2 * (int64_t)i * (n - 1) + kept - 1) / (2 * (kept - 1))) : i]);
    }
    put_char(t, ']');
}
