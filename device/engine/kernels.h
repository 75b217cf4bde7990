/* What differs from one instruction set to another: how rows are found, multiplied and brought back to levels. */
#ifndef NATIVE_KERNELS_H
#define NATIVE_KERNELS_H
#include "format.h"
#include <stddef.h>

void *memcpy(void *, const void *, size_t);
void *memset(void *, int, size_t);
int memcmp(const void *, const void *, size_t);
/* Freestanding, the compiler would call them even for four bytes. */
#define memcpy __builtin_memcpy
#define memset __builtin_memset
#define memcmp __builtin_memcmp

#define INLINE static inline __attribute__((always_inline))

#if defined __x86_64__
#define AHEAD 32                    /* rows that are prefetched; read into assembly, so no constant of the compiler */
#else
#define AHEAD 12
#endif
enum { SLACK = 64 };                /* elements that kernels may write behind a list or a row */

/* The rows of weights that count for one result, each with the value that multiplies it. */
struct native_list {
    uint16_t *row;
    uint8_t *value;
    uint16_t *count;                /* rows of each group: its sums cannot leave 16 bits */
    int rows, groups;
    int32_t sum;                    /* of all values */
};

struct native_order {               /* for each mask of eight: how many ones it has, and where, first to last */
    uint8_t count[256], place[256][8];
};

struct native_sums {                /* a layer as a kernel sees it */
    const uint8_t *weights;
    int bits, in, padded;
    int is_signed;                  /* values are int8, levels less their base less 128 */
};

/* Sums of 16-byte chunks first ... last - 1 of all rows: acc[output] = sum of value * weight, weights of 4 and 2 bits
 * read as they are stored, 8 or 1 too large. acc has room for whole chunks. */
typedef void native_multiply(const struct native_sums *, const struct native_list *, int32_t *acc, int first, int last);
/* The elements of u[0 ... n) that are not zero; how many. */
typedef int native_compact(const uint8_t *u, int n, uint16_t *row, uint8_t *value, const struct native_order *);
/* Part a list into groups, and with fewer than 8 bits add its values up; SLACK bytes behind its values may be read, the first sixteen are 0. */
typedef void native_group(struct native_list *, int bits, int is_signed);
/* stored[i] = clip(rint((float)(acc[i] + bias[i] - less) * m[i]) + zero, low, 127) - base, i < n, a multiple of 16 */
typedef void native_requantize(const int32_t *acc, const int32_t *bias, int32_t less, const float *m, int n, int zero,
                               int low, int base, uint8_t *stored);

/* How observations become levels; each array has one element for all of them, or one for each. */
struct native_input {
    const float *mean, *inverse, *lowest, *highest;
    int each;
    float scale;
    int zero, base;
};
/* stored[i] = clip(rint(clip((x[i] - mean) * inverse, lowest, highest) / scale) + zero, -128, 127) - base, i < n */
typedef void native_quantize(const struct native_input *, const float *x, int n, uint8_t *stored);

/* A convolution, its weights read once for several windows. Four rows lie side by side as int8, quad after quad:
 * weights[quad][output][row]; a line of the window is filled up to an even number of quads with rows of zeros. For a set
 * that takes_int8, and of a dense layer, which is a window of one line, they lie so block by block of 64 outputs. */
struct native_windows {
    const uint8_t *u;               /* the stored image */
    const uint8_t *low;             /* its lower seven bits, for sets with a piece below 255; u - 128, int8, for takes_int8 */
    const int8_t *weights;
    const uint8_t *heavy;           /* of each two quads, for each 16 outputs: 1 if 127 times the weights of two rows of */
                                    /* one, and of the same two of the other, can leave 16 bits; of convolutions */
    int windows;                    /* how many; 1 of a dense layer, else those of the set */
    int side, run, quads, wide;     /* lines of a window; bytes and quads of one; outputs, a multiple of 16 */
    int is_signed;                  /* of a dense layer: low is int8, u - 128 */
    int passed, block;              /* of a dense layer: quads of a block before the first that counts; all of them */
    size_t line;                    /* bytes of a line of the image */
    uint32_t *large;                /* room for two numbers a quad */
};

enum { MOST_WINDOWS = 8 };
/* acc[t][output] of the windows that begin at u + corner[t] */
typedef void native_convolve(const struct native_windows *, const size_t *corner, int32_t *acc);

struct native_floats {              /* a layer of floats as a kernel sees it, and the rows that count */
    const uint8_t *weights;         /* in blocks of NATIVE_BLOCK outputs, row after row */
    const float *bias, *multiplier; /* the second of levels alone */
    const uint16_t *row;
    const float *value;
    int bits, in, padded, rows;     /* bits: 32 floats, 16 IEEE halves, 8 or 4 levels */
};

/* y[output] = bias + the sum of value * weight, of levels times the multiplier, of all outputs */
typedef void native_multiply_floats(const struct native_floats *, float *y);

struct native_kernel_set {
    const char *name;
    int (*runs_here)(void);
    int multiple;                   /* rows of a list come in multiples of this, the last with the value 0 */
    int piece;                      /* a larger value of an 8-bit layer is spread over several rows */
    int takes_signed;               /* whether 8-bit layers with a signed bias are fed signed values */
    native_compact *compact;
    native_group *group;            /* NULL: there are no groups */
    native_multiply *multiply;
    native_requantize *requantize;
    native_quantize *quantize;
    native_multiply_floats *multiply_floats;
    native_convolve *convolve;      /* NULL: window by window, as a dense layer */
    int windows;                    /* that it takes at once; 0: none but those of dense layers */
    int takes_int8;                 /* whether convolve takes int8 values */
    uint32_t most_dense;            /* weights of a dense layer of 8 bits that convolve takes, too, at most */
    uint32_t only_dense;            /* of these only those whose zeros are not skipped */
};

INLINE int outputs_of_chunk(int bits) { return 8 * NATIVE_CHUNK / bits; }

/* The rows of a block of 64 bytes lie one behind another; the last block is as wide as its chunks. */
INLINE const uint8_t *block_of(const struct native_sums *s, int chunk) { return s->weights + (size_t)chunk * NATIVE_CHUNK * (size_t)s->in; }

INLINE int32_t rounded(float x)     /* to the nearest whole number, half to even; of |x| beyond 1024, of that */
{
    x = x > 1024.0f ? 1024.0f : x;
    x = x < -1024.0f ? -1024.0f : x;
    union { float f; int32_t i; } u;
    u.f = x + 12582912.0f;          /* 1.5 * 2^23 */
    return u.i - 0x4B400000;
}

INLINE int limited(int x, int low, int high) { return x < low ? low : x > high ? high : x; }

/* The bodies of functions that every set has, compiled once for each. */
INLINE int compact_here(const uint8_t *u, int n, uint16_t *restrict row, uint8_t *restrict value)
{
    int found = 0;
    for (int i = 0; i < n; i++) {
        const uint8_t v = u[i];
        row[found] = (uint16_t)i;
        value[found] = v;
        found += v != 0;
    }
    return found;
}

INLINE void requantize_here(const int32_t *restrict acc, const int32_t *restrict bias, int32_t less, const float *restrict m,
                            int n, int zero, int low, int base, uint8_t *restrict stored)
{
    for (int i = 0; i < n; i++) {
        const int32_t sum = (int32_t)((uint32_t)acc[i] + (uint32_t)bias[i] - (uint32_t)less);
        stored[i] = (uint8_t)(limited(rounded((float)sum * m[i]) + zero, low, 127) - base);
    }
}

INLINE float normalised(float x, float mean, float inverse, float lowest, float highest)
{
    float z = (x - mean) * inverse;
    z = z > highest ? highest : z;
    return z < lowest ? lowest : z;
}

INLINE uint8_t quantized(float x, float mean, float inverse, float lowest, float highest, const struct native_input *s)
{
    const float z = normalised(x, mean, inverse, lowest, highest);
    return (uint8_t)(limited(rounded(z / s->scale) + s->zero, -128, 127) - s->base);
}

INLINE void quantize_here(const struct native_input *input, const float *restrict x, int n, uint8_t *restrict stored)
{
    const struct native_input s = *input; /* a copy, so that nothing stored can change it */
    if (s.each)
        for (int i = 0; i < n; i++) stored[i] = quantized(x[i], s.mean[i], s.inverse[i], s.lowest[i], s.highest[i], &s);
    else {
        const float mean = *s.mean, inverse = *s.inverse, lowest = *s.lowest, highest = *s.highest;
        for (int i = 0; i < n; i++) stored[i] = quantized(x[i], mean, inverse, lowest, highest, &s);
    }
}

INLINE float widened_half(uint16_t half)
{
    const union { uint32_t i; float f; } size = {.i = (uint32_t)(half & 0x7fff) << 13};
    union { float f; uint32_t i; } x = {.f = size.f * 0x1p112f}; /* exact, of the halves below the normal ones, too */
    x.i |= (uint32_t)(half & 0x8000) << 16;
    return x.f;
}

/* Level i of 4 bits: sixteen lie in 8 bytes, the first eight in the lower halves. */
INLINE int nibble(const uint8_t *p, int i)
{
    const int8_t byte = (int8_t)p[i / 16 * 8 + i % 8];
    return i % 16 < 8 ? (int8_t)((uint8_t)byte << 4) >> 4 : byte >> 4;
}

/* Sums of 16 n outputs from `first` on, whose weights in a row begin at w; rows lie `width` bytes apart. */
INLINE void sum_here(const struct native_floats *s, const uint8_t *w, size_t width, int first, float *y, const int n, const int bits)
{
    float a[NATIVE_BLOCK] = {0};
    for (int k = 0; k < s->rows; k++) {
        const float x = s->value[k];
        const uint8_t *p = w + s->row[k] * width;
        for (int i = 0; i < 16 * n; i++)
            a[i] += x * (bits == 32 ? ((const float *)(const void *)p)[i] : bits == 16 ? widened_half(((const uint16_t *)(const void *)p)[i]) :
                         bits == 8 ? (float)(int8_t)p[i] : (float)nibble(p, i));
    }
    for (int i = 0; i < 16 * n; i++) y[first + i] = (bits < 16 ? a[i] * s->multiplier[first + i] : a[i]) + s->bias[first + i];
}

/* All outputs of a layer of floats, with at most 16 * `most` sums at once; `sum` is as sum_here, inlined for each width. */
#define SUM_FLOATS(sum, n) \
    switch (s->bits) { \
    case 32: sum(s, w, width, first, y, n, 32); break; \
    case 16: sum(s, w, width, first, y, n, 16); break; \
    case 8: sum(s, w, width, first, y, n, 8); break; \
    default: sum(s, w, width, first, y, n, 4); \
    }
#define OVER_FLOATS(sum, most) \
    for (int first = 0, n; first < s->padded; first += n) { \
        const int block = first & -NATIVE_BLOCK, end = s->padded - block < NATIVE_BLOCK ? s->padded : block + NATIVE_BLOCK; \
        const size_t bits = (size_t)s->bits, width = (size_t)(end - block) * bits / 8; \
        const uint8_t *w = s->weights + ((size_t)block * (size_t)s->in + (size_t)(first - block)) * bits / 8; \
        n = end - first >= 64 && (most) >= 4 ? 64 : end - first >= 32 && (most) >= 2 ? 32 : 16; \
        if (n == 64) { SUM_FLOATS(sum, (most) < 4 ? (most) : 4) } \
        else if (n == 32) { SUM_FLOATS(sum, (most) < 2 ? (most) : 2) } \
        else { SUM_FLOATS(sum, 1) } \
    }
#endif
