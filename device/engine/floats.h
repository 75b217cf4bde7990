/* Layers of floats: checking, and what follows their sums. All of an artifact's layers are of floats, or none is. */
#ifndef NATIVE_FLOATS_H
#define NATIVE_FLOATS_H
#include "cells.h"
#include "engine.h"
#include "norm.h"
#include "records.h"

/* Whether no half of these is infinite or no number. */
static int are_finite_halves(const uint16_t *w, size_t n)
{
    unsigned beyond = 0;
    for (size_t i = 0; i < n; i++) beyond |= (w[i] & 0x7c00) == 0x7c00;
    return !beyond;
}

/* What check_layer has left: sizes, weights and bias lie inside. */
static enum native_error check_floats(const struct native_file *f, const struct native_layer *y)
{
    const size_t n = (size_t)y->in * y->padded;
    const uint32_t unused[] = {y->widened ? 0 : y->multiplier, y->widened == NATIVE_DYNAMIC ? 0 : y->signed_bias, y->table, (uint32_t)y->zero, (uint32_t)y->low, (uint32_t)y->base,
                               (uint32_t)y->norm_zero, (uint32_t)y->norm_low, y->dense};
    if (!are_zero(unused, sizeof unused) || y->scale != 0.0f || y->norm_scale != 0.0f) return NATIVE_BAD_PADDING;
    if (y->widened && y->bits != 8 && (y->bits != 4 || y->widened == NATIVE_DYNAMIC)) return NATIVE_BAD_LAYER;
    if (y->widened == NATIVE_DYNAMIC && (is_conv(y) || !lies_inside(f, y->signed_bias, 4ull * y->padded))) return NATIVE_BAD_OFFSET;
    if (y->widened && !lies_inside(f, y->multiplier, 4ull * y->padded)) return NATIVE_BAD_OFFSET;
    if (y->widened && !are_finite(f, y->multiplier, y->padded)) return NATIVE_BAD_NUMBER;
    if (!y->gamma != !y->beta || y->cell > NATIVE_LSTM) return NATIVE_BAD_LAYER;
    if (y->gamma && (!lies_inside(f, y->gamma, 4ull * y->out) || !lies_inside(f, y->beta, 4ull * y->out))) return NATIVE_BAD_OFFSET;
    if (y->cell && (is_conv(y) || y->gamma || y->activation || y->out % (y->cell == NATIVE_GRU ? 3 : 4) || y->in != units(y))) return NATIVE_BAD_LAYER;
    if (y->activation >= NATIVE_ACTIVATIONS || !(y->slope >= -3.4e38f && y->slope <= 3.4e38f)) return NATIVE_BAD_NUMBER;
    if (y->slope != 0.0f && y->activation != NATIVE_LEAKY_RELU) return NATIVE_BAD_PADDING;
    if (!are_finite(f, y->bias, y->padded) || (y->gamma && (!are_finite(f, y->gamma, y->out) || !are_finite(f, y->beta, y->out)))) return NATIVE_BAD_NUMBER;
    if (!are_zero((const float *)at(f, y->bias) + y->out, 4 * (size_t)(y->padded - y->out))) return NATIVE_BAD_PADDING;
    if (y->widened && !are_zero((const float *)at(f, y->multiplier) + y->out, 4 * (size_t)(y->padded - y->out))) return NATIVE_BAD_PADDING;
    if (y->widened == NATIVE_DYNAMIC && !are_weights(at(f, y->weights), n, 8)) return NATIVE_BAD_NUMBER;
    if ((y->bits == 16 && !are_finite_halves(at(f, y->weights), n)) || (y->bits == 32 && !are_finite(f, y->weights, n))) return NATIVE_BAD_NUMBER;
    return are_zero(y->pad, sizeof y->pad) ? NATIVE_OK : NATIVE_BAD_PADDING;
}

/* Values become levels 0 ... 255 from the least to the largest, `zero` that of 0; the scale. */
__attribute__((noinline)) static float to_levels(const float *restrict x, uint32_t n, uint8_t *restrict level, int *zero)
{
    int32_t most = 0;                   /* read as whole numbers, floats above 0 are in order, and those below in reverse */
    uint32_t least = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, 4);
        most = (int32_t)bits > most ? (int32_t)bits : most;
        least = bits > least ? bits : least;
    }
    float high, low;
    least = least >> 31 ? least : 0;
    memcpy(&high, &most, 4);
    memcpy(&low, &least, 4);
    const float spread = (high - low) / 255.0f, scale = spread >= 0x1p-126f ? spread : 1.0f;
    const int32_t z = *zero = limited(rounded(-low / scale), 0, 255);
    for (uint32_t i = 0; i < n; i++) {
        const float place = x[i] / scale + 12582912.0f; /* as in rounded */
        uint32_t bits;                  /* of no number, any: its sum may wrap around */
        memcpy(&bits, &place, 4);
        level[i] = (uint8_t)limited((int32_t)(bits - 0x4B400000u + (uint32_t)z), 0, 255);
    }
    return scale;
}

/* Sums of levels less that of 0, as floats; `of_weights` are those of the weights. */
__attribute__((noinline)) static void scale_sums(const uint32_t *restrict acc, uint32_t zero, const uint32_t *restrict of_weights, float scale,
                                                 const float *restrict multiplier, const float *restrict bias, uint32_t n, float *restrict sums)
{
    for (uint32_t i = 0; i < n; i++) sums[i] = (float)(int32_t)(acc[i] - zero * of_weights[i]) * (scale * multiplier[i]) + bias[i];
}

/* The rows that count: those whose input is not zero; how many. */
static int compact_floats(const float *restrict x, uint32_t n, uint16_t *restrict row, float *restrict value)
{
    int found = 0;
    for (uint32_t i = 0; i < n; i++) {
        row[found] = (uint16_t)i;
        value[found] = x[i];
        found += x[i] != 0.0f;
    }
    return found;
}

/* The functions of activations.h with the tanh of cells.h, a loop for each: what is chosen once can be vectorised. */
static void activate_floats(uint32_t kind, float *x_, uint32_t n, const float slope)
{
#define tanh64(x) tanh32((float)(x))
#define NATIVE_LOOP(number, name, f) \
    case number: \
        for (uint32_t i = 0; i < n; i++) { \
            const float x = x_[i]; \
            x_[i] = (float)(f); \
        } \
        break;
    if (kind == NATIVE_NONE) return;
    switch (kind) { EACH_ACTIVATION(NATIVE_LOOP) }
    (void)slope;
#undef tanh64
}

static void normalise_floats(float *x, uint32_t n, const float *gamma, const float *beta, double *wide)
{
    for (uint32_t i = 0; i < n; i++) wide[i] = x[i];
    normalise(wide, n, gamma, beta);
    for (uint32_t i = 0; i < n; i++) x[i] = (float)wide[i];
}

/* The outputs of a decision, and the first largest; `ends` are their lowest and highest, gain and offset, or NULL. */
static int decide_floats(const float *x, uint32_t n, const float *ends, float *outputs)
{
    int best = 0;
    for (uint32_t i = 0; i < n; i++) {
        float y = x[i];
        if (ends) {
            y = y > ends[n + i] ? ends[n + i] : y;
            y = (y < ends[i] ? ends[i] : y) * ends[2 * n + i] + ends[3 * n + i];
        }
        outputs[i] = y;
        if (x[i] > x[best]) best = (int)i;
    }
    return ends ? 0 : best;
}
#endif
