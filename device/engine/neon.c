/* NEON: AArch64 and ARMv7; at the end, dot products. A row is multiplied by its broadcast value and added up in 16
 * bits, which the values of a group cannot leave; a group's sums are then added in 32. The loops of AArch64 over whole
 * blocks are in neon64.h: compiled from intrinsics they spill registers. */
#if defined __ARM_NEON
#include "kernels.h"
#include <arm_neon.h>

static int has_neon(void) { return 1; }

static int compact_neon(const uint8_t *u, int n, uint16_t *row, uint8_t *value, const struct native_order *order)
{
#if defined __aarch64__
    static const uint8_t BITS[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x8_t weight = vld1_u8(BITS);
    int found = 0;
    for (int i = 0; i < n; i += 8) { /* behind n there is anything: it is cut off below */
        const uint8x8_t v = vld1_u8(u + i);
        const uint8_t on = vaddv_u8(vand_u8(vtst_u8(v, v), weight));
        const uint8x8_t places = vld1_u8(order->place[on]);
        vst1_u8(value + found, vtbl1_u8(v, places));
        vst1q_u16(row + found, vaddw_u8(vdupq_n_u16((uint16_t)i), places));
        found += order->count[on];
    }
    while (found && row[found - 1] >= n) found--;
    return found;
#else
    (void)order;
    return compact_here(u, n, row, value);
#endif
}

/* Pairs of 8-bit rows, eights of others, as long as the sums of their products by the largest weights fit 16 bits: 258 * 127
 * in int16; 4369 * 15 in uint16, and of 2 bits 2047 * 2 * 16, for the third weight of a byte is multiplied where it lies. */
static void group_neon(struct native_list *l, int bits, int is_signed)
{
    const int most = bits == 8 ? 258 : bits == 4 ? 4369 : 2047, step = bits == 8 ? 2 : 8, k = l->rows;
    uint16_t *count = l->count;
    int start = 0, held = 0;
    for (int i = 0; i < k; i += 16) {
        if (i - start > UINT16_MAX - 16) {
            *count++ = (uint16_t)(i - start);
            start = i, held = 0;
        }
        uint8x16_t v = vld1q_u8(l->value + i);
        if (is_signed) v = vreinterpretq_u8_s8(vabsq_s8(vreinterpretq_s8_u8(v))); /* 128 of -128, as unsigned */
        uint16_t sums[8];
        const uint16x8_t pairs = vpaddlq_u8(v);
        if (step == 2) vst1q_u16(sums, pairs);
        else {
            const uint64x2_t eights = vpaddlq_u32(vpaddlq_u16(pairs));
            sums[0] = (uint16_t)vgetq_lane_u64(eights, 0), sums[1] = (uint16_t)vgetq_lane_u64(eights, 1);
            l->sum += sums[0] + sums[1];
        }
        const int n = (k - i < 16 ? k - i + step - 1 : 16) / step;
        for (int t = 0; t < n; t++) {
            held += sums[t];
            if (held > most) {
                *count++ = (uint16_t)(i + t * step - start);
                start = i + t * step, held = sums[t];
            }
        }
    }
    if (k) *count++ = (uint16_t)(k - start);
    l->groups = (int)(count - l->count);
}

#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)

/* 8 bits: int8 weights by int8 values, `chunks` of 16 outputs. */
INLINE void rows8(const uint8_t *w, size_t width, const struct native_list *l, int32_t *acc, const int chunks)
{
    int32x4_t a[16];
    EACH(c, 4 * chunks) a[c] = vdupq_n_s32(0);
    for (int g = 0, k = 0; g < l->groups; g++) {
        int16x8_t s[8];
        EACH(c, 2 * chunks) s[c] = vdupq_n_s16(0);
        for (const int end = k + l->count[g]; k < end; k++) {
            const int8_t *p = (const int8_t *)w + l->row[k] * width;
            const int8x8_t v = vld1_dup_s8((const int8_t *)l->value + k);
            __builtin_prefetch(w + l->row[k + AHEAD] * width);
            EACH(c, chunks) {
                const int8x16_t x = vld1q_s8(p + 16 * c);
                s[2 * c] = vmlal_s8(s[2 * c], vget_low_s8(x), v);
                s[2 * c + 1] = vmlal_s8(s[2 * c + 1], vget_high_s8(x), v);
            }
        }
        EACH(c, 2 * chunks) {
            a[2 * c] = vaddw_s16(a[2 * c], vget_low_s16(s[c]));
            a[2 * c + 1] = vaddw_s16(a[2 * c + 1], vget_high_s16(s[c]));
        }
    }
    EACH(c, 4 * chunks) vst1q_s32(acc + 4 * c, a[c]);
}

INLINE void add_wide(int32_t *acc, const uint16x8_t s)
{
    vst1q_s32(acc, vreinterpretq_s32_u32(vaddw_u16(vreinterpretq_u32_s32(vld1q_s32(acc)), vget_low_u16(s))));
    vst1q_s32(acc + 4, vreinterpretq_s32_u32(vaddw_u16(vreinterpretq_u32_s32(vld1q_s32(acc + 4)), vget_high_u16(s))));
}

/* 4 bits: unsigned weights by unsigned values, `chunks` of 32 outputs. */
INLINE void rows4(const uint8_t *w, size_t width, const struct native_list *l, int32_t *acc, const int chunks)
{
    const uint8x16_t mask = vdupq_n_u8(15);
    memset(acc, 0, sizeof(int32_t) * 32 * (size_t)chunks);
    for (int g = 0, k = 0; g < l->groups; g++) {
        uint16x8_t s[16];
        EACH(c, 4 * chunks) s[c] = vdupq_n_u16(0);
        for (const int end = k + l->count[g]; k < end; k++) {
            const uint8_t *p = w + l->row[k] * width;
            const uint8x8_t v = vld1_dup_u8(l->value + k);
            __builtin_prefetch(w + l->row[k + AHEAD] * width);
            EACH(c, chunks) {
                const uint8x16_t x = vld1q_u8(p + 16 * c), low = vandq_u8(x, mask), high = vshrq_n_u8(x, 4);
                s[4 * c] = vmlal_u8(s[4 * c], vget_low_u8(low), v);
                s[4 * c + 1] = vmlal_u8(s[4 * c + 1], vget_high_u8(low), v);
                s[4 * c + 2] = vmlal_u8(s[4 * c + 2], vget_low_u8(high), v);
                s[4 * c + 3] = vmlal_u8(s[4 * c + 3], vget_high_u8(high), v);
            }
        }
        EACH(c, 4 * chunks) add_wide(acc + 8 * c, s[c]);
    }
}

/* 2 bits, `chunks` of 64 outputs: the second and third weight of a byte stay where they are, 4 and 16 times as much. */
INLINE void rows2(const uint8_t *w, size_t width, const struct native_list *l, int32_t *acc, const int chunks)
{
    const uint8x16_t m0 = vdupq_n_u8(0x03), m1 = vdupq_n_u8(0x0c), m2 = vdupq_n_u8(0x30);
    memset(acc, 0, sizeof(int32_t) * 64 * (size_t)chunks);
    for (int g = 0, k = 0; g < l->groups; g++) {
        uint16x8_t s[16];
        EACH(c, 8 * chunks) s[c] = vdupq_n_u16(0);
        for (const int end = k + l->count[g]; k < end; k++) {
            const uint8_t *p = w + l->row[k] * width;
            const uint8x8_t v = vld1_dup_u8(l->value + k);
            __builtin_prefetch(w + l->row[k + AHEAD] * width);
            EACH(c, chunks) {
                const uint8x16_t x = vld1q_u8(p + 16 * c);
                const uint8x16_t q[4] = {vandq_u8(x, m0), vandq_u8(x, m1), vandq_u8(x, m2), vshrq_n_u8(x, 6)};
                EACH(j, 4) {
                    s[8 * c + 2 * j] = vmlal_u8(s[8 * c + 2 * j], vget_low_u8(q[j]), v);
                    s[8 * c + 2 * j + 1] = vmlal_u8(s[8 * c + 2 * j + 1], vget_high_u8(q[j]), v);
                }
            }
        }
        EACH(c, chunks) EACH(i, 2) {
            add_wide(acc + 64 * c + 8 * i, s[8 * c + i]);
            add_wide(acc + 64 * c + 16 + 8 * i, vshrq_n_u16(s[8 * c + 2 + i], 2));
            add_wide(acc + 64 * c + 32 + 8 * i, vshrq_n_u16(s[8 * c + 4 + i], 4));
            add_wide(acc + 64 * c + 48 + 8 * i, s[8 * c + 6 + i]);
        }
    }
}

#if defined __aarch64__
#include "neon64.h"
enum { MOST8 = 4, MOST4 = 4, MOST2 = 2 }; /* chunks whose sums fit the registers */
#else
enum { MOST8 = 2, MOST4 = 2, MOST2 = 1 };
#endif

/* This many chunks at once, known where it is compiled. */
#define ROWS(rows, n) \
    switch (n) { \
    case 1: rows(w, width, list, a, 1); break; \
    case 2: rows(w, width, list, a, 2); break; \
    default: break; \
    }
#define ROWS4(rows, n) \
    switch (n) { \
    case 3: rows(w, width, list, a, 3); break; \
    case 4: rows(w, width, list, a, 4); break; \
    default: ROWS(rows, n) \
    }

static void multiply_neon(const struct native_sums *s, const struct native_list *list, int32_t *acc, int first, int last)
{
    const int chunks = s->padded / outputs_of_chunk(s->bits), most = s->bits == 8 ? MOST8 : s->bits == 4 ? MOST4 : MOST2;
    for (int chunk = first; chunk < last;) {
        const int block = chunk & ~3, wide = chunks - block < 4 ? chunks - block : 4;
        int n = (last < block + wide ? last : block + wide) - chunk;
        n = n > most ? most : n;
        const size_t width = (size_t)wide * NATIVE_CHUNK;
        const uint8_t *w = block_of(s, block) + (chunk - block) * NATIVE_CHUNK;
        int32_t *a = acc + chunk * outputs_of_chunk(s->bits);
#if defined __aarch64__
        if (wide == 4 && n == most) {
            if (s->bits == 8) block8(w, list, a);
            else if (s->bits == 4) block4(w, list, a);
            else half2(w, list, a);
        } else if (s->bits == 8) { ROWS4(rows8, n) }
        else if (s->bits == 4) { ROWS4(rows4, n) }
        else { ROWS(rows2, n) }
#else
        if (s->bits == 8) { ROWS(rows8, n) }
        else if (s->bits == 4) { ROWS(rows4, n) }
        else rows2(w, width, list, a, 1);
#endif
        chunk += n;
    }
}

static void requantize_neon(const int32_t *acc, const int32_t *bias, int32_t less, const float *m, int n, int zero, int low,
                            int base, uint8_t *stored)
{
#if defined __aarch64__
    const int32x4_t vless = vdupq_n_s32(less);
    const int16x8_t vlow = vdupq_n_s16((int16_t)low), vzero = vdupq_n_s16((int16_t)zero);
    const int8x16_t vbase = vdupq_n_s8((int8_t)base);
    for (int i = 0; i < n; i += 16) {
        int16x8_t h[2];
        EACH(j, 2) {
            int32x4_t q[2];
            EACH(t, 2) {
                const int o = i + 8 * j + 4 * t;
                const int32x4_t sum = vsubq_s32(vaddq_s32(vld1q_s32(acc + o), vld1q_s32(bias + o)), vless);
                q[t] = vcvtnq_s32_f32(vmulq_f32(vcvtq_f32_s32(sum), vld1q_f32(m + o)));
            }
            h[j] = vmaxq_s16(vqaddq_s16(vcombine_s16(vqmovn_s32(q[0]), vqmovn_s32(q[1])), vzero), vlow);
        }
        const int8x16_t levels = vcombine_s8(vqmovn_s16(h[0]), vqmovn_s16(h[1])); /* at most 127 */
        vst1q_u8(stored + i, vreinterpretq_u8_s8(vsubq_s8(levels, vbase)));
    }
#else
    /* ARMv7's vectors flush denormal numbers to zero: one at a time, as IEEE 754 has it. */
    requantize_here(acc, bias, less, m, n, zero, low, base, stored);
#endif
}

static void quantize(const struct native_input *input, const float *x, int n, uint8_t *stored) { quantize_here(input, x, n, stored); }

#if defined __aarch64__ || (defined __ARM_FP16_FORMAT_IEEE && __ARM_FP & 2 && defined __ARM_FEATURE_FMA)
/* The weights of 16 outputs. */
INLINE void widened16(const uint8_t *p, const int bits, float32x4_t w[4])
{
    if (bits == 32) EACH(i, 4) w[i] = vld1q_f32((const float *)(const void *)p + 4 * i);
    if (bits == 16) EACH(i, 2) {
        const float16x8_t half = vreinterpretq_f16_u8(vld1q_u8(p + 16 * i));
        w[2 * i] = vcvt_f32_f16(vget_low_f16(half)), w[2 * i + 1] = vcvt_f32_f16(vget_high_f16(half));
    }
#if defined __aarch64__
    if (bits == 8) EACH(i, 4) {         /* each level as the highest byte of a word, whose 24 lower bits are a fraction */
        const uint32x4_t place = vaddq_u32((uint32x4_t){0x00ffffff, 0x01ffffff, 0x02ffffff, 0x03ffffff}, vdupq_n_u32((uint32_t)i << 26));
        w[i] = vcvtq_n_f32_s32(vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(p), vreinterpretq_u8_u32(place))), 24);
    }
    if (bits == 4) {                    /* each level is a half whose lower byte is 0 */
        static const uint8_t HALVES[16] = {0, 0x3c, 0x40, 0x42, 0x44, 0x45, 0x46, 0x47, 0xc8, 0xc7, 0xc6, 0xc5, 0xc4, 0xc2, 0xc0, 0xbc};
        const uint8x8_t v = vld1_u8(p);
        const uint8x16_t high = vqtbl1q_u8(vld1q_u8(HALVES), vcombine_u8(vand_u8(v, vdup_n_u8(15)), vshr_n_u8(v, 4)));
        const float16x8_t a = vreinterpretq_f16_u16(vshll_n_u8(vget_low_u8(high), 8)), b = vreinterpretq_f16_u16(vshll_n_u8(vget_high_u8(high), 8));
        w[0] = vcvt_f32_f16(vget_low_f16(a)), w[1] = vcvt_f32_f16(vget_high_f16(a));
        w[2] = vcvt_f32_f16(vget_low_f16(b)), w[3] = vcvt_f32_f16(vget_high_f16(b));
    }
#else
    if (bits < 16) EACH(i, 2) {
        const int8x8_t v = vreinterpret_s8_u8(vld1_u8(p + (bits == 8 ? 8 * i : 0)));
        const int16x8_t level = vmovl_s8(bits == 8 ? v : vshr_n_s8(i ? v : vshl_n_s8(v, 4), 4));
        w[2 * i] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(level))), w[2 * i + 1] = vcvtq_f32_s32(vmovl_s16(vget_high_s16(level)));
    }
#endif
}

/* Floats: a product and a sum are rounded once. */
INLINE void sum_neon(const struct native_floats *s, const uint8_t *w, size_t width, int first, float *y, const int n, const int bits)
{
    float32x4_t a[16];
    EACH(i, 4 * n) a[i] = bits < 16 ? vdupq_n_f32(0.0f) : vld1q_f32(s->bias + first + 4 * i);
    for (int k = 0; k < s->rows; k++) {
        const float32x4_t x = vdupq_n_f32(s->value[k]);
        const uint8_t *p = w + s->row[k] * width;
        EACH(i, n) {
            float32x4_t v[4];
            widened16(p + 2 * bits * i, bits, v);
            EACH(j, 4) a[4 * i + j] = vfmaq_f32(a[4 * i + j], x, v[j]);
        }
    }
    EACH(i, 4 * n) {
        if (bits < 16) a[i] = vfmaq_f32(vld1q_f32(s->bias + first + 4 * i), a[i], vld1q_f32(s->multiplier + first + 4 * i));
        vst1q_f32(y + first + 4 * i, a[i]);
    }
}
#else
#define sum_neon sum_here
#endif
#if defined __aarch64__
static void multiply_floats(const struct native_floats *s, float *y) { OVER_FLOATS(sum_neon, 4) }
#else
static void multiply_floats(const struct native_floats *s, float *y) { OVER_FLOATS(sum_neon, 2) }
#endif

#if defined __aarch64__
/* Eight outputs, whose weights of a quad lie at w + at, of the next one at next + at. In assembly: the compiler takes ext and
 * smull for smull2, and reads all weights first, for which it has no registers. */
INLINE void add_quads(int32x4_t a[4], const int8_t *w, const int8_t *next, const int at, int8x16_t v0, int8x16_t v1)
{
    int8x16_t x, y;
    int16x8_t s, t, u, v;
    __asm__("ldp %q4, %q5, [%10, %12]\n smull %6.8h, %4.8b, %13.8b\n smull2 %7.8h, %4.16b, %13.16b\n smull %8.8h, %5.8b, %13.8b\n smull2 %9.8h, %5.16b, %13.16b\n"
            "ldp %q4, %q5, [%11, %12]\n smlal %6.8h, %4.8b, %14.8b\n smlal2 %7.8h, %4.16b, %14.16b\n smlal %8.8h, %5.8b, %14.8b\n smlal2 %9.8h, %5.16b, %14.16b\n"
            "sadalp %0.4s, %6.8h\n sadalp %1.4s, %7.8h\n sadalp %2.4s, %8.8h\n sadalp %3.4s, %9.8h"
            : "+w"(a[0]), "+w"(a[1]), "+w"(a[2]), "+w"(a[3]), "=&w"(x), "=&w"(y), "=&w"(s), "=&w"(t), "=&w"(u), "=&w"(v)
            : "r"(w), "r"(next), "i"(at), "w"(v0), "w"(v1)
            : "memory");
}

/* 16 * n outputs of a dense layer; the weights of a quad and of the next one lie `width` bytes apart. The products of two
 * quads are added in 16 bits, which two weights of at most 127 cannot leave. */
INLINE void dense_neon(const struct native_windows *s, const int8_t *w, size_t width, const int8_t *value, int32_t *acc, const int n)
{
    int32x4_t a[16];
    EACH(i, 8 * n) a[i] = vdupq_n_s32(0);
    _Pragma("GCC unroll 1") for (int q = 0; q < s->quads; q += 2, value += 8, w += 2 * width) {
        const int8x16_t v0 = vreinterpretq_s8_s32(vld1q_dup_s32((const int32_t *)(const void *)value));
        const int8x16_t v1 = vreinterpretq_s8_s32(vld1q_dup_s32((const int32_t *)(const void *)(value + 4)));
        const int8_t *next = w + width;
        EACH(i, 2 * n) add_quads(a + 4 * i, w, next, 32 * i, v0, v1);
    }
    EACH(i, 4 * n) vst1q_s32(acc + 4 * i, vpaddq_s32(a[2 * i], a[2 * i + 1]));
}

static void multiply_dense_neon(const struct native_windows *s, const size_t *corner, int32_t *acc)
{
    const int8_t *value = (const int8_t *)s->low + *corner;
    for (int first = 0; first < s->wide; first += NATIVE_BLOCK) {
        const int n = (s->wide - first < NATIVE_BLOCK ? s->wide - first : NATIVE_BLOCK) / 16;
        const size_t width = 64 * (size_t)n;
        const int8_t *w = s->weights + 4 * (size_t)first * (size_t)s->block + width * (size_t)s->passed;
        for (int i = 0; i < n; i += 2)
            if (n - i > 1) dense_neon(s, w + 64 * i, width, value, acc + first + 16 * i, 2);
            else dense_neon(s, w + 64 * i, width, value, acc + first + 16 * i, 1);
    }
}
#endif

const struct native_kernel_set native_neon = {
    .name = "neon", .runs_here = has_neon, .multiple = 2, .piece = 127,
#if defined __aarch64__
    .convolve = multiply_dense_neon, .takes_int8 = 1, .most_dense = UINT32_MAX, .only_dense = 1,
#endif
    .takes_signed = 1, .group = group_neon,
    .compact = compact_neon, .multiply = multiply_neon, .requantize = requantize_neon, .quantize = quantize, .multiply_floats = multiply_floats,
};

/* ---- dot products (Cortex-A76) ------------------------------------------------------------------------------------
 * All rows, four of them side by side as engine.c packs them: an instruction multiplies the weights of four outputs by
 * four values. Where only rows that count are taken, and of fewer bits, everything is as above: to bring four such rows
 * side by side takes as many instructions as it saves. */
#if defined NATIVE_DOT
unsigned long getauxval(unsigned long); /* of the process's C library */

static int has_dot(void) { return (int)(getauxval(16) >> 20 & 1); } /* AT_HWCAP, HWCAP_ASIMDDP */

#define DOT __attribute__((target("arch=armv8.2-a+dotprod")))
/* Quad j of those in v, by the weights at w. */
#define QUAD(j) \
    EACH(i, 4 * n) { \
        const int8x16_t x = vld1q_s8(w + 16 * i); \
        EACH(t, m) a[4 * n * t + i] = vdotq_laneq_s32(a[4 * n * t + i], x, v[t], j); \
    } \
    w += width;

/* 16 * n outputs of m windows; the weights of a quad and of the next one lie `width` bytes apart. */
DOT INLINE void windows_dot(const struct native_windows *s, const int8_t *w, size_t width, const size_t *corner, int32_t *acc, const int m, const int n)
{
    int32x4_t a[16];
    int8x16_t v[4];
    EACH(i, 4 * m * n) a[i] = vdupq_n_s32(0);
    for (int k = 0; k < s->side; k++) {
        const int8_t *u[4];
        EACH(t, m) u[t] = (const int8_t *)s->low + corner[t] + (size_t)k * s->line;
        int q = s->quads;
        _Pragma("GCC unroll 1") for (; q >= 4; q -= 4) { /* ldp reaches no further than four quads */
            EACH(t, m) v[t] = vld1q_s8(u[t]), u[t] += 16;
            QUAD(0) QUAD(1) QUAD(2) QUAD(3)
        }
        if (q) {                        /* there is an even number of them */
            EACH(t, m) v[t] = vcombine_s8(vld1_s8(u[t]), vdup_n_s8(0));
            QUAD(0) QUAD(1)
        }
    }
    EACH(t, m) EACH(i, 4 * n) vst1q_s32(acc + t * s->wide + 4 * i, a[4 * n * t + i]);
}

DOT static void convolve_dot(const struct native_windows *s, const size_t *corner, int32_t *acc)
{
    for (int first = 0; first < s->wide; first += NATIVE_BLOCK) {
        const int n = (s->wide - first < NATIVE_BLOCK ? s->wide - first : NATIVE_BLOCK) / 16;
        const int8_t *w = s->weights + 4 * ((size_t)first * (size_t)s->block + 16 * (size_t)n * (size_t)s->passed);
        if (s->windows > 1) for (int i = 0; i < n; i++) windows_dot(s, w + 64 * i, 64 * (size_t)n, corner, acc + first + 16 * i, 4, 1);
        else if (n == 4) windows_dot(s, w, 256, corner, acc + first, 1, 4);
        else if (n == 3) windows_dot(s, w, 192, corner, acc + first, 1, 3);
        else if (n == 2) windows_dot(s, w, 128, corner, acc + first, 1, 2);
        else windows_dot(s, w, 64, corner, acc + first, 1, 1);
    }
}

const struct native_kernel_set native_dot = {
    .name = "dot", .runs_here = has_dot, .multiple = 2, .piece = 127, .takes_signed = 1, .group = group_neon,
    .compact = compact_neon, .multiply = multiply_neon, .requantize = requantize_neon, .quantize = quantize, .multiply_floats = multiply_floats,
    .convolve = convolve_dot, .windows = 4, .takes_int8 = 1, .most_dense = UINT32_MAX,
};
#endif
#endif
