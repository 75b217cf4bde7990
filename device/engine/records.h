/* What the records of an artifact say, and whether what they point to is there. */
#ifndef NATIVE_RECORDS_H
#define NATIVE_RECORDS_H
#include "kernels.h"

/* Whether its values are floats: then those of every layer are. */
static int is_float(const struct native_layer *y) { return y->bits > 8 || y->widened; }
/* Bytes of a result as it is stored. */
static size_t size_of(const struct native_layer *y) { return is_float(y) ? sizeof(float) : 1; }

static int is_conv(const struct native_layer *y) { return y->side != 0; }

static uint32_t positions(uint32_t size, uint32_t side, uint32_t stride) { return (size - side) / stride + 1; }

static uint32_t units(const struct native_layer *y) { return y->out / (y->cell == NATIVE_GRU ? 3 : 4); }
static uint32_t state_of(const struct native_layer *y) { return y->cell == NATIVE_LSTM ? 2 * units(y) : y->cell ? units(y) : 0; }

/* Results of a layer, of all positions of a convolution. */
static uint64_t results(const struct native_layer *y)
{
    if (y->cell) return units(y);
    if (!is_conv(y)) return y->out;
    return (uint64_t)positions(y->height, y->side, y->stride) * positions(y->width, y->side, y->stride) * y->out;
}

static uint64_t count_inputs(const struct native_layer *y) { return is_conv(y) ? (uint64_t)y->height * y->width * y->channels : y->in; }

static int lies_inside(const struct native_file *f, uint32_t offset, uint64_t size)
{
    return offset % NATIVE_LINE == 0 && offset >= sizeof *f + f->layers * sizeof(struct native_layer) && offset <= f->bytes && size <= f->bytes - offset;
}

static int is_level(int32_t x) { return x >= -128 && x <= 127; }

static int are_zero(const void *bytes, size_t n)
{
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i++) if (b[i]) return 0;
    return 1;
}

static const void *at(const struct native_file *f, uint32_t offset) { return (const char *)f + offset; }

static int are_finite(const struct native_file *f, uint32_t offset, size_t n)
{
    const uint32_t *bits = at(f, offset);
    for (size_t i = 0; i < n; i++) if ((bits[i] >> 23 & 255) == 255) return 0;
    return 1;
}

/* Whether every weight is one that this many bits may hold, -127 ... 127 or -1 ... 1: more would leave the kernels' sums. */
static int are_weights(const uint8_t *w, size_t n, uint32_t bits)
{
    unsigned beyond = 0;
    if (bits == 8) for (size_t i = 0; i < n; i++) beyond |= w[i] == 128;
    if (bits == 2) for (size_t i = 0; i < n; i++) beyond |= w[i] & w[i] >> 1 & 0x55;
    return !beyond;
}

static int is_positive(float x) { return x > 0.0f && x <= 3.4028235e38f; }
#endif
