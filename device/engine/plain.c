/* The readable reference, and what runs where nothing faster does. */
#include "kernels.h"

static int everywhere(void) { return 1; }

static int compact(const uint8_t *u, int n, uint16_t *row, uint8_t *value, const struct native_order *order) { (void)order; return compact_here(u, n, row, value); }

static void requantize(const int32_t *acc, const int32_t *bias, int32_t less, const float *m, int n, int zero, int low,
                       int base, uint8_t *stored)
{
    requantize_here(acc, bias, less, m, n, zero, low, base, stored);
}

/* A chunk of 16 bytes holds its outputs 0 ... 15 in the lowest bits of its bytes, 16 ... 31 in the next ones, and so on. */
static void multiply(const struct native_sums *s, const struct native_list *list, int32_t *acc, int first, int last)
{
    const int parts = 8 / s->bits, mask = (1 << s->bits) - 1, chunks = s->padded / outputs_of_chunk(s->bits);
    for (int chunk = first; chunk < last; chunk++) {
        const int block = chunk & ~3, width = (chunks - block < 4 ? chunks - block : 4) * NATIVE_CHUNK;
        const uint8_t *start = block_of(s, block) + (chunk - block) * NATIVE_CHUNK;
        int32_t *a = acc + chunk * outputs_of_chunk(s->bits);
        memset(a, 0, sizeof(int32_t) * (size_t)outputs_of_chunk(s->bits));
        for (int k = 0; k < list->rows; k++) {
            const uint8_t *w = start + (size_t)list->row[k] * (size_t)width;
            const int v = s->is_signed ? (int8_t)list->value[k] : list->value[k];
            for (int j = 0; j < parts; j++)
                for (int i = 0; i < NATIVE_CHUNK; i++)
                    a[j * NATIVE_CHUNK + i] += v * (parts == 1 ? (int8_t)w[i] : w[i] >> (j * s->bits) & mask);
        }
    }
}

static void quantize(const struct native_input *input, const float *x, int n, uint8_t *stored) { quantize_here(input, x, n, stored); }

static void multiply_floats(const struct native_floats *s, float *y) { OVER_FLOATS(sum_here, 1) }

const struct native_kernel_set native_plain = {
    .name = "plain", .runs_here = everywhere, .multiple = 1, .piece = 255, .compact = compact, .multiply = multiply, .requantize = requantize,
    .quantize = quantize, .multiply_floats = multiply_floats,
};
