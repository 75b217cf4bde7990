/* Layer normalisation and the activations behind it, in double precision, operation for operation as policy/exact.py and
 * policy/quantize.py have them: with the same bits on every processor. */
#ifndef NATIVE_NORM_H
#define NATIVE_NORM_H
#include "kernels.h"

union native_double { double d; uint64_t i; };

/* 2^e, -1022 <= e <= 1023 */
INLINE double power_of_two(int e) { return (union native_double){.i = (uint64_t)(e + 1023) << 52}.d; }

/* e of x = m * 2^e, 1/2 <= m < 1, at least -900; of a normal number, or 0 */
INLINE int exponent_of(double x)
{
    const int e = (int)((union native_double){.d = x}.i >> 52 & 2047) - 1022;
    return x == 0.0 ? 0 : e < -900 ? -900 : e;
}

INLINE double whole(double x) { return (x + 6755399441055744.0) - 6755399441055744.0; } /* 1.5 * 2^52: |x| < 2^51 */

/* The largest |x|, and its exponent's distance from `bits`. */
static int bits_below(const double *x, uint32_t n, int bits)
{
    double most = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        const double size = x[i] < 0 ? -x[i] : x[i];
        most = size > most ? size : most;
    }
    return bits - exponent_of(most);
}

static double tanh64(double x)
{
    x = x > 16.0 ? 16.0 : x < -16.0 ? -16.0 : x;
    double t = x / 64.0;
    const double square = t * t;
    double below = 11.0;
    below = 9.0 + square / below;
    below = 7.0 + square / below;
    below = 5.0 + square / below;
    below = 3.0 + square / below;
    below = 1.0 + square / below;
    t = t / below;
    for (int i = 0; i < 6; i++) t = 2.0 * t / (1.0 + t * t);
    return t;
}

static double positive(double x) { return x > 0.0 ? x : 0.0; }
static double negative(double x) { return x < 0.0 ? x : 0.0; }

static double activate(uint32_t kind, double x, double slope)
{
#define NATIVE_CASE(number, name, f) case number: return f;
    switch (kind) { EACH_ACTIVATION(NATIVE_CASE) }
    (void)slope;
    return x;
}

/* gamma (x - mean x) / sqrt(var x + 1e-5) + beta of x[n], in place, as floats; both sums are of whole numbers */
static void normalise(double *x, uint32_t n, const float *gamma, const float *beta)
{
    int shift = bits_below(x, n, 26), width = 0;
    double factor = power_of_two(shift), unit = power_of_two(-shift), sum = 0.0, squares = 0.0;
    for (uint32_t i = 0; i < n; i++) sum += whole(x[i] * factor);
    const double mean = sum * unit / n;
    for (uint32_t i = 0; i < n; i++) x[i] -= mean;
    while ((n - 1) >> width) width++;
    shift = bits_below(x, n, (53 - width) / 2);
    factor = power_of_two(shift), unit = power_of_two(-shift);
    for (uint32_t i = 0; i < n; i++) {
        const double level = whole(x[i] * factor);
        squares += level * level;
    }
    const double deviation = __builtin_sqrt(squares * (unit * unit) / n + 1e-5);
    for (uint32_t i = 0; i < n; i++) x[i] = (float)(x[i] / deviation * gamma[i] + beta[i]);
}
#endif
