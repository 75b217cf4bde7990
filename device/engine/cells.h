/* The gates of a recurrent layer in float32, as policy/spec.py has them: products and sums one by one, and an
 * exponential of a few of them (the polynomial is that of Cephes's expf, S. Moshier), so that every processor computes
 * the same. */
#ifndef NATIVE_CELLS_H
#define NATIVE_CELLS_H
#include "kernels.h"

/* e^x to about 2 units in the last place, |x| <= 87 */
INLINE float exponential(float x)
{
    x = x > 87.0f ? 87.0f : x > -87.0f ? x : -87.0f; /* a NaN becomes the least, too */
    const float k = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* 1.5 * 2^23: the nearest whole number */
    const float r = (x - k * 0.693359375f) - k * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const union { int32_t i; float f; } power = {.i = ((int32_t)k + 127) * (1 << 23)};
    return (p * (r * r) + r + 1.0f) * power.f;
}

INLINE float sigmoid32(float x) { return 1.0f / (1.0f + exponential(-x)); }
INLINE float tanh32(float x) { return 1.0f - 2.0f / (1.0f + exponential(2.0f * x)); }

/* Levels as they are stored less the lowest, to floats. */
INLINE void widened(const uint8_t *stored, uint32_t n, float scale, int zero, float *to)
{
    for (uint32_t i = 0; i < n; i++) to[i] = scale * (float)(stored[i] - 128 - zero);
}

/* a = x W + b, c = h U + d, gates of n units one behind the other; state and next are h[n] */
static void gru(uint32_t n, float *restrict a, const float *restrict c, const float *restrict state, float *restrict next)
{
    for (uint32_t i = 0; i < 2 * n; i++) a[i] = sigmoid32(a[i] + c[i]);
    for (uint32_t i = 0; i < n; i++) {
        const float candidate = tanh32(a[2 * n + i] + a[i] * c[2 * n + i]);
        next[i] = candidate + a[n + i] * (state[i] - candidate);
    }
}

/* state and next are h[n] with s[n] behind it */
static void lstm(uint32_t n, float *restrict a, const float *restrict c, const float *restrict state, float *restrict next)
{
    for (uint32_t i = 0; i < 4 * n; i++) a[i] = a[i] + c[i];
    for (uint32_t i = 0; i < n; i++) {
        const float kept = sigmoid32(a[n + i]) * state[n + i] + sigmoid32(a[i]) * tanh32(a[2 * n + i]);
        next[n + i] = kept;
        next[i] = sigmoid32(a[3 * n + i]) * tanh32(kept);
    }
}
#endif
