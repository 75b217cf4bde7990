/* AVX2, and AVX-512 with VNNI and VBMI2 (Ice Lake, Zen 4 and later); which of them runs is seen when a policy is opened.
 *
 * Four rows at a time: unpacking them twice puts the four weights of an output side by side, where one instruction
 * multiplies them by the four rows' values and adds the products up. */
#if defined __x86_64__
#include "kernels.h"
#include <immintrin.h>

/* Unrolled before the compiler decides what lies in registers. */
#define EACH(i, n) _Pragma("clang loop unroll(full)") for (int i = 0; i < (n); i++)

INLINE int32_t four_of(const uint8_t *u)
{
    int32_t four;
    memcpy(&four, u, 4);
    return four;
}

static void cpuid(unsigned leaf, unsigned subleaf, unsigned r[4])
{
    __asm__ volatile("cpuid" : "=a"(r[0]), "=b"(r[1]), "=c"(r[2]), "=d"(r[3]) : "a"(leaf), "c"(subleaf));
}

/* What the operating system saves of the registers: bits 1, 2 SSE and AVX, 5 ... 7 AVX-512. */
static unsigned saved_registers(void)
{
    unsigned r[4], low, high;
    cpuid(0, 0, r);
    if (r[0] < 7) return 0;
    cpuid(1, 0, r);
    if (!(r[2] >> 27 & 1)) return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static int has_avx2(void)
{
    unsigned r[4];
    const unsigned c = 1u << 12 | 1u << 29; /* FMA, F16C */
    if ((saved_registers() & 6) != 6) return 0;
    cpuid(1, 0, r);
    if ((r[2] & c) != c) return 0;
    cpuid(7, 0, r);
    return (int)(r[1] >> 5 & 1);
}

static int has_avx512(void)
{
    unsigned r[4];
    if ((saved_registers() & 0xe6) != 0xe6 || !has_avx2()) return 0;
    cpuid(7, 0, r);
    const unsigned b = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    const unsigned c = 1u << 1 | 1u << 6 | 1u << 11;              /* VBMI, VBMI2, VNNI */
    return (r[1] & b) == b && (r[2] & c) == c;
}

#define AVX2 __attribute__((target("avx2,fma,f16c,popcnt,bmi2")))

/* Floats: a product and a sum are rounded once. */
AVX2 INLINE void sum256(const struct native_floats *s, const uint8_t *w, size_t width, int first, float *y, const int n, const int bits)
{
    __m256 a[8];
    EACH(i, 2 * n) a[i] = bits < 16 ? _mm256_setzero_ps() : _mm256_loadu_ps(s->bias + first + 8 * i);
    for (int k = 0; k < s->rows; k++) {
        const __m256 x = _mm256_set1_ps(s->value[k]);
        const uint8_t *p = w + s->row[k] * width;
        EACH(i, 2 * n) {
            __m256 v;
            if (bits == 32) v = _mm256_loadu_ps((const float *)(p + 32 * i));
            else if (bits == 16) v = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 16 * i)));
            else {
                const __m256i level = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + (bits == 8 ? 8 * i : i / 2 * 8))));
                const __m256i half = i % 2 ? level : _mm256_slli_epi32(level, 28);
                v = _mm256_cvtepi32_ps(bits == 8 ? level : _mm256_srai_epi32(half, i % 2 ? 4 : 28));
            }
            a[i] = _mm256_fmadd_ps(x, v, a[i]);
        }
    }
    EACH(i, 2 * n) {
        if (bits < 16) a[i] = _mm256_fmadd_ps(a[i], _mm256_loadu_ps(s->multiplier + first + 8 * i), _mm256_loadu_ps(s->bias + first + 8 * i));
        _mm256_storeu_ps(y + first + 8 * i, a[i]);
    }
}

AVX2 static void multiply_floats256(const struct native_floats *s, float *y) { OVER_FLOATS(sum256, 4) }

/* ---- AVX-512 ---------------------------------------------------------------------------------------------------- */
#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx512vnni,avx2,fma,popcnt,bmi2")))

AVX512 static int compact512(const uint8_t *u, int n, uint16_t *row, uint8_t *value, const struct native_order *order)
{
    (void)order;
    __m512i low = _mm512_setzero_si512(), high;
    for (int i = 0; i < 32; i++) ((uint16_t *)&low)[i] = (uint16_t)i;
    high = _mm512_add_epi16(low, _mm512_set1_epi16(32));
    int found = 0;
    for (int i = 0; i < n; i += 64) {
        const __mmask64 have = n - i < 64 ? (1ull << (n - i)) - 1 : ~0ull;
        const __m512i v = _mm512_maskz_loadu_epi8(have, u + i);
        const __mmask64 on = _mm512_mask_test_epi8_mask(have, v, v);
        const __m512i at = _mm512_set1_epi16((short)i);
        const int first = __builtin_popcount((unsigned)on);
        _mm512_storeu_si512(value + found, _mm512_maskz_compress_epi8(on, v));
        _mm512_storeu_si512(row + found, _mm512_maskz_compress_epi16((__mmask32)on, _mm512_add_epi16(low, at)));
        _mm512_storeu_si512(row + found + first, _mm512_maskz_compress_epi16((__mmask32)(on >> 32), _mm512_add_epi16(high, at)));
        found += first + __builtin_popcount((unsigned)(on >> 32));
    }
    return found;
}

/* a[t] holds outputs 16 c + 4 t ... + 3 of each chunk c: back to their order. */
AVX512 INLINE void store512(int32_t *acc, size_t stride, const __m512i a[4], int chunks)
{
    const __m512i x = _mm512_shuffle_i32x4(a[0], a[1], 0x44), y = _mm512_shuffle_i32x4(a[2], a[3], 0x44);
    const __m512i z = _mm512_shuffle_i32x4(a[0], a[1], 0xee), w = _mm512_shuffle_i32x4(a[2], a[3], 0xee);
    _mm512_storeu_si512(acc, _mm512_shuffle_i32x4(x, y, 0x88));
    if (chunks > 1) _mm512_storeu_si512(acc + stride, _mm512_shuffle_i32x4(x, y, 0xdd));
    if (chunks > 2) _mm512_storeu_si512(acc + 2 * stride, _mm512_shuffle_i32x4(z, w, 0x88));
    if (chunks > 3) _mm512_storeu_si512(acc + 3 * stride, _mm512_shuffle_i32x4(z, w, 0xdd));
}

/* A part of bytes where it lies, 2^(bits * part) times as large; the last, whose highest bit would be a sign, is made that
 * sign by turning it over, and so is read half its range too small: 16 * 8 * 255 * 65535 still lies in 32 bits. */
AVX512 INLINE __m512i in_place512(__m512i q, const int bits, const int part)
{
    const __m512i mask = _mm512_set1_epi8((char)(((1 << bits) - 1) << bits * part));
    if (part + 1 < 8 / bits) return _mm512_and_si512(q, mask);
    return _mm512_ternarylogic_epi32(q, mask, _mm512_set1_epi8((char)0x80), 0x48); /* (q ^ 0x80) & mask */
}

/* One block of up to four chunks; `bits` is known where it is compiled. */
AVX512 INLINE void block512(const uint8_t *w, size_t width, const struct native_list *list, int32_t *acc, int chunks, const int bits)
{
    enum { MOST = 4 };
    const int parts = 8 / bits;
    const __mmask64 bytes = chunks == 4 ? ~0ull : (1ull << 16 * chunks) - 1;
    __m512i a[MOST][4];
    for (int j = 0; j < parts; j++)
        for (int t = 0; t < 4; t++) a[j][t] = _mm512_setzero_si512();
    const uint16_t *row = list->row;
    for (int k = 0; k < list->rows; k += 4) {
        const __m512i r0 = _mm512_maskz_loadu_epi8(bytes, w + row[k] * width), r1 = _mm512_maskz_loadu_epi8(bytes, w + row[k + 1] * width);
        const __m512i r2 = _mm512_maskz_loadu_epi8(bytes, w + row[k + 2] * width), r3 = _mm512_maskz_loadu_epi8(bytes, w + row[k + 3] * width);
        _mm_prefetch((const char *)w + row[k + AHEAD] * width, _MM_HINT_T0);
        _mm_prefetch((const char *)w + row[k + AHEAD + 1] * width, _MM_HINT_T0);
        _mm_prefetch((const char *)w + row[k + AHEAD + 2] * width, _MM_HINT_T0);
        _mm_prefetch((const char *)w + row[k + AHEAD + 3] * width, _MM_HINT_T0);
        const __m512i v = _mm512_set1_epi32(four_of(list->value + k));
        const __m512i lo = _mm512_unpacklo_epi8(r0, r1), hi = _mm512_unpackhi_epi8(r0, r1);
        const __m512i lo2 = _mm512_unpacklo_epi8(r2, r3), hi2 = _mm512_unpackhi_epi8(r2, r3);
        __m512i q[4] = {_mm512_unpacklo_epi16(lo, lo2), _mm512_unpackhi_epi16(lo, lo2), _mm512_unpacklo_epi16(hi, hi2), _mm512_unpackhi_epi16(hi, hi2)};
        for (int t = 0; t < 4; t++)
            for (int j = 0; j < parts; j++) a[j][t] = _mm512_dpbusd_epi32(a[j][t], v, parts == 1 ? q[t] : in_place512(q[t], bits, j));
    }
    for (int j = 1; j < parts; j++)
        for (int t = 0; t < 4; t++) {
            a[j][t] = _mm512_srai_epi32(a[j][t], (unsigned)(bits * j));
            if (j == parts - 1) a[j][t] = _mm512_add_epi32(a[j][t], _mm512_set1_epi32(list->sum << (bits - 1)));
        }
    for (int j = 0; j < parts; j++) store512(acc + j * NATIVE_CHUNK, (size_t)outputs_of_chunk(bits), a[j], chunks);
}

/* The chunks first ... last - 1, block by block; a block may be begun or left inside. */
#define OVER_BLOCKS(call) \
    const int chunks = s->padded / outputs_of_chunk(s->bits); \
    for (int chunk = first; chunk < last;) { \
        const int block = chunk & ~3, wide = chunks - block < 4 ? chunks - block : 4; \
        const int n = (last < block + wide ? last : block + wide) - chunk; \
        const size_t width = (size_t)wide * NATIVE_CHUNK; \
        const uint8_t *w = block_of(s, block) + (chunk - block) * NATIVE_CHUNK; \
        int32_t *a = acc + chunk * outputs_of_chunk(s->bits); \
        call; \
        chunk += n; \
    }

/* A whole block of four or two chunks is compiled apart, with its width. */
#define EACH_WIDTH(block, ...) \
    if (n == 4) block(w, NATIVE_LINE, list, a, 4, __VA_ARGS__); \
    else if (n == 2 && wide == 2) block(w, NATIVE_LINE / 2, list, a, 2, __VA_ARGS__); \
    else block(w, width, list, a, n, __VA_ARGS__)

AVX512 static void multiply512(const struct native_sums *s, const struct native_list *list, int32_t *acc, int first, int last)
{
    if (s->bits == 8) { OVER_BLOCKS(EACH_WIDTH(block512, 8)) }
    else if (s->bits == 4) { OVER_BLOCKS(EACH_WIDTH(block512, 4)) }
    else { OVER_BLOCKS(EACH_WIDTH(block512, 2)) }
}

AVX512 static void requantize512(const int32_t *acc, const int32_t *bias, int32_t less, const float *m, int n, int zero,
                                 int low, int base, uint8_t *stored)
{
    const __m512i vless = _mm512_set1_epi32(less), vzero = _mm512_set1_epi32(zero), vbase = _mm512_set1_epi32(base);
    const __m512i vlow = _mm512_set1_epi32(low), vhigh = _mm512_set1_epi32(127);
    const __m512 most = _mm512_set1_ps(1024.0f), least = _mm512_set1_ps(-1024.0f);
    for (int i = 0; i < n; i += 16) {
        const __m512i sum = _mm512_sub_epi32(_mm512_add_epi32(_mm512_loadu_si512(acc + i), _mm512_loadu_si512(bias + i)), vless);
        const __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_loadu_ps(m + i));
        __m512i q = _mm512_add_epi32(_mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(x, most), least)), vzero);
        q = _mm512_sub_epi32(_mm512_min_epi32(_mm512_max_epi32(q, vlow), vhigh), vbase);
        _mm_storeu_si128((__m128i *)(stored + i), _mm512_cvtepi32_epi8(q));
    }
}

enum { WINDOWS512 = 8, WINDOWS256 = 4 };

/* 16 * n outputs of all windows. */
AVX512 INLINE void windows512(const struct native_windows *s, const int8_t *w, const size_t *corner, int32_t *acc, const int n)
{
    __m512i a[WINDOWS512][2];
    EACH(t, WINDOWS512) a[t][0] = a[t][1] = _mm512_setzero_si512();
    for (int k = 0; k < s->side; k++) {
        const uint8_t *u[WINDOWS512];
        EACH(t, WINDOWS512) u[t] = s->u + corner[t] + (size_t)k * s->line;
        for (size_t q = 0; q < (size_t)s->quads; q++, w += 4 * s->wide) {
            const __m512i w0 = _mm512_load_si512(w), w1 = n == 2 ? _mm512_load_si512(w + 64) : w0;
            EACH(t, WINDOWS512) {
                const __m512i v = _mm512_set1_epi32(four_of(u[t] + 4 * q));
                a[t][0] = _mm512_dpbusd_epi32(a[t][0], v, w0);
                if (n == 2) a[t][1] = _mm512_dpbusd_epi32(a[t][1], v, w1);
            }
        }
    }
    EACH(t, WINDOWS512)
        EACH(i, n) _mm512_storeu_si512(acc + t * s->wide + 16 * i, a[t][i]);
}

/* 16 * n outputs of a dense layer, at most a block. */
AVX512 INLINE void dense512(const struct native_windows *s, const int8_t *w, size_t corner, int32_t *acc, const int n)
{
    __m512i a[2][4];
    w += 64 * n * s->passed;
    EACH(j, 2) EACH(i, n) a[j][i] = _mm512_setzero_si512();
    for (int q = 0; q < s->quads; q += 2)
        EACH(j, 2) {
            const __m512i v = _mm512_set1_epi32(four_of(s->u + corner + 4 * (q + j)));
            EACH(i, n) a[j][i] = _mm512_dpbusd_epi32(a[j][i], v, _mm512_load_si512(w + 64 * n * (q + j) + 64 * i));
        }
    EACH(i, n) _mm512_storeu_si512(acc + 16 * i, _mm512_add_epi32(a[0][i], a[1][i]));
}

/* A dense layer, block by block; each width is compiled apart. */
#define OVER_DENSE(dense, ...) \
    for (int first = 0; first < s->wide; first += NATIVE_BLOCK) { \
        const int8_t *w = s->weights + 4 * (size_t)first * (size_t)s->block; \
        switch (s->wide - first < NATIVE_BLOCK ? (s->wide - first) / 16 : 4) { \
        case 4: dense(s, w, *corner, __VA_ARGS__ acc + first, 4); break; \
        case 3: dense(s, w, *corner, __VA_ARGS__ acc + first, 3); break; \
        case 2: dense(s, w, *corner, __VA_ARGS__ acc + first, 2); break; \
        default: dense(s, w, *corner, __VA_ARGS__ acc + first, 1); \
        } \
    }

AVX512 static void convolve512(const struct native_windows *s, const size_t *corner, int32_t *acc)
{
    if (s->windows == 1) {
        OVER_DENSE(dense512)
        return;
    }
    int first = 0;
    for (; first + 32 <= s->wide; first += 32) windows512(s, s->weights + 4 * first, corner, acc + first, 2);
    if (first < s->wide) windows512(s, s->weights + 4 * first, corner, acc + first, 1);
}

AVX512 static void quantize512(const struct native_input *input, const float *x, int n, uint8_t *stored) { quantize_here(input, x, n, stored); }

const struct native_kernel_set native_avx512 = {
    .name = "avx512", .runs_here = has_avx512, .multiple = 4, .piece = 255, .compact = compact512, .multiply = multiply512, .requantize = requantize512, .quantize = quantize512, .multiply_floats = multiply_floats256,
    .convolve = convolve512, .windows = WINDOWS512, .most_dense = 1 << 16,
};

/* ---- AVX2: no dpbusd; the products of two rows are added in 16 bits, which two values up to 128 cannot leave ----------- */
AVX2 static int compact256(const uint8_t *u, int n, uint16_t *row, uint8_t *value, const struct native_order *order)
{
    int found = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)(u + i));
        const uint32_t on = ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(v, _mm256_setzero_si256()));
        for (int j = 0; j < 4; j++) {
            const uint32_t mask = on >> 8 * j & 255;
            const __m128i place = _mm_loadl_epi64((const __m128i *)order->place[mask]);
            const __m128i eight = _mm_loadl_epi64((const __m128i *)(u + i + 8 * j));
            _mm_storel_epi64((__m128i *)(value + found), _mm_shuffle_epi8(eight, place));
            _mm_storeu_si128((__m128i *)(row + found), _mm_add_epi16(_mm_cvtepu8_epi16(place), _mm_set1_epi16((short)(i + 8 * j))));
            found += __builtin_popcount(mask);
        }
    }
    for (; i < n; i++) {
        row[found] = (uint16_t)i;
        value[found] = u[i];
        found += value[found] != 0;
    }
    return found;
}

/* Signed values give their signs to the weights. */
AVX2 INLINE void four256(__m256i a[4], const __m256i r[4], __m256i v, const int is_signed)
{
    const __m256i ones = _mm256_set1_epi16(1), size = is_signed ? _mm256_abs_epi8(v) : v;
    const __m256i lo = _mm256_unpacklo_epi8(r[0], r[1]), hi = _mm256_unpackhi_epi8(r[0], r[1]);
    const __m256i lo2 = _mm256_unpacklo_epi8(r[2], r[3]), hi2 = _mm256_unpackhi_epi8(r[2], r[3]);
    const __m256i q[4] = {_mm256_unpacklo_epi16(lo, lo2), _mm256_unpackhi_epi16(lo, lo2), _mm256_unpacklo_epi16(hi, hi2), _mm256_unpackhi_epi16(hi, hi2)};
    EACH(t, 4) {
        const __m256i x = is_signed ? _mm256_sign_epi8(q[t], v) : q[t];
        a[t] = _mm256_add_epi32(a[t], _mm256_madd_epi16(_mm256_maddubs_epi16(size, x), ones));
    }
}

AVX2 INLINE void add_wide256(int32_t *acc, __m128i x)
{
    _mm256_storeu_si256((__m256i *)acc, _mm256_add_epi32(_mm256_loadu_si256((const __m256i *)acc), _mm256_cvtepu16_epi32(x)));
}

AVX2 INLINE __m256i load256(const uint8_t *w, const int chunks)
{
    return chunks == 2 ? _mm256_loadu_si256((const __m256i *)w) : _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)w));
}

/* 8 bits: one chunk, two side by side, or twice two; a[h][t] holds outputs 16 c + 4 t ... + 3 of each chunk c. */
AVX2 INLINE void rows8(const uint8_t *w, size_t width, const struct native_list *list, int32_t *acc, const int chunks, const int is_signed)
{
    const int halves = chunks == 4 ? 2 : 1;
    __m256i a[2][4];
    EACH(h, halves) EACH(t, 4) a[h][t] = _mm256_setzero_si256();
    for (int k = 0; k < list->rows; k += 4) {
        const uint8_t *p[4];
        EACH(i, 4) {
            p[i] = w + list->row[k + i] * width;
            _mm_prefetch((const char *)w + list->row[k + AHEAD + i] * width, _MM_HINT_T0);
        }
        const __m256i v = _mm256_set1_epi32(four_of(list->value + k));
        EACH(h, halves) {
            __m256i r[4];
            EACH(i, 4) r[i] = load256(p[i] + 32 * h, chunks == 1 ? 1 : 2);
            four256(a[h], r, v, is_signed);
        }
    }
    EACH(h, halves) EACH(t, 4) {
        _mm_storeu_si128((__m128i *)(acc + 32 * h + 4 * t), _mm256_castsi256_si128(a[h][t]));
        if (chunks > 1) _mm_storeu_si128((__m128i *)(acc + 32 * h + 16 + 4 * t), _mm256_extracti128_si256(a[h][t], 1));
    }
}

/* 4 and 2 bits: two rows at a time, whose sums stay below 2^16 for 16 * 15 * 255 and 64 * 3 * 255. */
AVX2 INLINE void rows_small(const uint8_t *w, size_t width, const struct native_list *list, int32_t *acc, const int chunks, const int bits)
{
    const int parts = 8 / bits, group = bits == 4 ? 16 : 64, halves = chunks == 4 ? 2 : 1, stride = outputs_of_chunk(bits);
    const __m256i mask = _mm256_set1_epi8((char)((1 << bits) - 1));
    memset(acc, 0, sizeof(int32_t) * (size_t)(chunks * stride));
    for (int start = 0; start < list->rows; start += group) {
        const int end = start + group < list->rows ? start + group : list->rows;
        __m256i s[2][4][2]; /* outputs 0 ... 7 of each chunk, and 8 ... 15 */
        EACH(h, halves) EACH(j, parts) s[h][j][0] = s[h][j][1] = _mm256_setzero_si256();
        for (int k = start; k < end; k += 2) {
            const uint8_t *p = w + list->row[k] * width, *q = w + list->row[k + 1] * width;
            int16_t two;
            memcpy(&two, list->value + k, 2);
            const __m256i v = _mm256_set1_epi16(two);
            _mm_prefetch((const char *)w + list->row[k + AHEAD] * width, _MM_HINT_T0);
            _mm_prefetch((const char *)w + list->row[k + AHEAD + 1] * width, _MM_HINT_T0);
            EACH(h, halves) {
                const __m256i x = load256(p + 32 * h, chunks == 1 ? 1 : 2), y = load256(q + 32 * h, chunks == 1 ? 1 : 2);
                const __m256i lo = _mm256_unpacklo_epi8(x, y), hi = _mm256_unpackhi_epi8(x, y);
                EACH(j, parts) {
                    s[h][j][0] = _mm256_add_epi16(s[h][j][0], _mm256_maddubs_epi16(v, _mm256_and_si256(_mm256_srli_epi16(lo, bits * j), mask)));
                    s[h][j][1] = _mm256_add_epi16(s[h][j][1], _mm256_maddubs_epi16(v, _mm256_and_si256(_mm256_srli_epi16(hi, bits * j), mask)));
                }
            }
        }
        EACH(h, halves) EACH(j, parts) EACH(i, 2) {
            int32_t *a = acc + 2 * h * stride + j * NATIVE_CHUNK + 8 * i;
            add_wide256(a, _mm256_castsi256_si128(s[h][j][i]));
            if (chunks > 1) add_wide256(a + stride, _mm256_extracti128_si256(s[h][j][i], 1));
        }
    }
}

/* Up to four chunks; the sums of four lie in registers, of 2 bits those of two. */
AVX2 INLINE void block256(const uint8_t *w, size_t width, const struct native_list *list, int32_t *acc, int chunks, const int bits, const int is_signed)
{
    if (chunks == 4 && bits == 8) rows8(w, width, list, acc, 4, is_signed);
    else if (chunks == 4 && bits == 4) rows_small(w, width, list, acc, 4, 4);
    else
        for (int c = 0; c < chunks; c += 2) {
            const uint8_t *start = w + c * NATIVE_CHUNK;
            int32_t *a = acc + c * outputs_of_chunk(bits);
            if (bits == 8 && chunks - c > 1) rows8(start, width, list, a, 2, is_signed);
            else if (bits == 8) rows8(start, width, list, a, 1, is_signed);
            else if (chunks - c > 1) rows_small(start, width, list, a, 2, bits);
            else rows_small(start, width, list, a, 1, bits);
        }
}

AVX2 static void multiply256(const struct native_sums *s, const struct native_list *list, int32_t *acc, int first, int last)
{
    if (s->bits == 8 && s->is_signed) { OVER_BLOCKS(EACH_WIDTH(block256, 8, 1)) }
    else if (s->bits == 8) { OVER_BLOCKS(EACH_WIDTH(block256, 8, 0)) }
    else if (s->bits == 4) { OVER_BLOCKS(EACH_WIDTH(block256, 4, 0)) }
    else { OVER_BLOCKS(EACH_WIDTH(block256, 2, 0)) }
}

AVX2 static void requantize256(const int32_t *acc, const int32_t *bias, int32_t less, const float *m, int n, int zero,
                               int low, int base, uint8_t *stored)
{
    const __m256i vless = _mm256_set1_epi32(less), vzero = _mm256_set1_epi32(zero);
    const __m256i vlow = _mm256_set1_epi16((short)low), vhigh = _mm256_set1_epi16(127), vbase = _mm256_set1_epi16((short)base);
    const __m256 most = _mm256_set1_ps(1024.0f), least = _mm256_set1_ps(-1024.0f);
    for (int i = 0; i < n; i += 16) {
        __m256i q[2];
        EACH(j, 2) {
            const __m256i sum = _mm256_sub_epi32(_mm256_add_epi32(_mm256_loadu_si256((const __m256i *)(acc + i + 8 * j)),
                                                                  _mm256_loadu_si256((const __m256i *)(bias + i + 8 * j))), vless);
            const __m256 x = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_loadu_ps(m + i + 8 * j));
            q[j] = _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(x, most), least)), vzero);
        }
        const __m256i h = _mm256_sub_epi16(_mm256_min_epi16(_mm256_max_epi16(_mm256_packs_epi32(q[0], q[1]), vlow), vhigh), vbase);
        const __m256i b = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(h, h), _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5));
        _mm_storeu_si128((__m128i *)(stored + i), _mm256_castsi256_si128(b));
    }
}

/* A quad of rows, of 16 outputs. */
AVX2 INLINE void add256(__m256i a[2], int32_t four, __m256i w0, __m256i w1)
{
    const __m256i v = _mm256_set1_epi32(four), ones = _mm256_set1_epi16(1);
    a[0] = _mm256_add_epi32(a[0], _mm256_madd_epi16(_mm256_maddubs_epi16(v, w0), ones));
    a[1] = _mm256_add_epi32(a[1], _mm256_madd_epi16(_mm256_maddubs_epi16(v, w1), ones));
}

/* Two quads whose products, of values up to 127, can be added in 16 bits. */
AVX2 INLINE void add_both256(__m256i a[2], const uint8_t *u, const __m256i w[4])
{
    const __m256i v = _mm256_set1_epi32(four_of(u)), next = _mm256_set1_epi32(four_of(u + 4)), ones = _mm256_set1_epi16(1);
    EACH(i, 2) {
        const __m256i x = _mm256_add_epi16(_mm256_maddubs_epi16(v, w[i]), _mm256_maddubs_epi16(next, w[2 + i]));
        a[i] = _mm256_add_epi32(a[i], _mm256_madd_epi16(x, ones));
    }
}

/* The quads where one of n windows has a value above 127, each as its place in the image and among the weights; how many. */
AVX2 INLINE int large256(const struct native_windows *s, const size_t *corner, const int n)
{
    int found = 0;
    for (int k = 0; k < s->side; k++) {
        const uint8_t *u = s->u + (size_t)k * s->line;
        for (int i = 0; i < s->run; i += 32) {
            __m256i any = _mm256_setzero_si256();
            EACH(t, n) any = _mm256_or_si256(any, _mm256_loadu_si256((const __m256i *)(u + corner[t] + i)));
            uint32_t on = (uint32_t)_mm256_movemask_epi8(any);
            if (s->run - i < 32) on &= (1u << (s->run - i)) - 1;
            if (!on) continue;
            for (int at = i; at < i + 32; at += 4, on >>= 4) { /* without a branch that nothing foretells */
                s->large[2 * found] = (uint32_t)((size_t)k * s->line) + (uint32_t)at;
                s->large[2 * found + 1] = (uint32_t)(k * s->quads + at / 4);
                found += (on & 15) != 0;
            }
        }
    }
    return found;
}

/* 16 * n outputs of a dense layer, at most a block; signed values give their signs to the weights. */
AVX2 INLINE void dense256(const struct native_windows *s, const int8_t *w, size_t corner, const int is_signed, int large, int32_t *acc, const int n)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i a[8];
    w += 64 * n * s->passed;
    EACH(i, 2 * n) a[i] = _mm256_setzero_si256();
    for (int q = 0; q < s->quads; q++) {
        const __m256i v = _mm256_set1_epi32(four_of(s->low + corner + 4 * q)), size = is_signed ? _mm256_abs_epi8(v) : v;
        EACH(i, 2 * n) {
            const __m256i four = _mm256_load_si256((const __m256i *)(w + 64 * n * q + 32 * i)), x = is_signed ? _mm256_sign_epi8(four, v) : four;
            a[i] = _mm256_add_epi32(a[i], _mm256_madd_epi16(_mm256_maddubs_epi16(size, x), ones));
        }
    }
    for (int k = 0; k < large; k++) {
        const __m256i v = _mm256_set1_epi32(four_of(s->u + corner + s->large[2 * k]) & (int32_t)0x80808080);
        EACH(i, 2 * n) {
            const __m256i x = _mm256_load_si256((const __m256i *)(w + 64 * n * (size_t)s->large[2 * k + 1] + 32 * i));
            a[i] = _mm256_add_epi32(a[i], _mm256_madd_epi16(_mm256_maddubs_epi16(v, x), ones));
        }
    }
    EACH(i, 2 * n) _mm256_storeu_si256((__m256i *)(acc + 8 * i), a[i]);
}

AVX2 static void convolve256(const struct native_windows *s, const size_t *corner, int32_t *acc)
{
    if (s->is_signed) {
        OVER_DENSE(dense256, 1, 0,)
        return;
    }
    const int large = s->windows == 1 ? large256(s, corner, 1) : large256(s, corner, WINDOWS256);
    if (s->windows == 1) {
        OVER_DENSE(dense256, 0, large,)
        return;
    }
    for (int first = 0; first < s->wide; first += 16) {
        const int8_t *start = s->weights + 4 * first, *w = start;
        const uint8_t *heavy = s->heavy + first / 16;
        __m256i a[WINDOWS256][2];
        EACH(t, WINDOWS256) a[t][0] = a[t][1] = _mm256_setzero_si256();
        for (int k = 0; k < s->side; k++) {
            const uint8_t *u[WINDOWS256];
            EACH(t, WINDOWS256) u[t] = s->low + corner[t] + (size_t)k * s->line;
            for (int q = 0; q < s->quads; q += 2, w += 8 * s->wide, heavy += s->wide / 16) {
                const __m256i *const p = (const __m256i *)w, *const next = (const __m256i *)(w + 4 * s->wide);
                const __m256i both[4] = {_mm256_load_si256(p), _mm256_load_si256(p + 1), _mm256_load_si256(next), _mm256_load_si256(next + 1)};
                if (!*heavy) EACH(t, WINDOWS256) add_both256(a[t], u[t] + 4 * q, both);
                else EACH(t, WINDOWS256) {
                    add256(a[t], four_of(u[t] + 4 * q), both[0], both[1]);
                    add256(a[t], four_of(u[t] + 4 * q + 4), both[2], both[3]);
                }
            }
        }
        for (int i = 0; i < large; i++) {
            const int8_t *x = start + (size_t)s->large[2 * i + 1] * 4 * (size_t)s->wide;
            const __m256i w0 = _mm256_load_si256((const __m256i *)x), w1 = _mm256_load_si256((const __m256i *)(x + 32));
            EACH(t, WINDOWS256) add256(a[t], four_of(s->u + corner[t] + s->large[2 * i]) & (int32_t)0x80808080, w0, w1);
        }
        EACH(t, WINDOWS256)
            EACH(i, 2) _mm256_storeu_si256((__m256i *)(acc + t * s->wide + first + 8 * i), a[t][i]);
    }
}

AVX2 static void quantize256(const struct native_input *input, const float *x, int n, uint8_t *stored) { quantize_here(input, x, n, stored); }

const struct native_kernel_set native_avx2 = {
    .name = "avx2", .runs_here = has_avx2, .multiple = 4, .piece = 128, .takes_signed = 1, .compact = compact256, .multiply = multiply256, .requantize = requantize256, .quantize = quantize256, .multiply_floats = multiply_floats256,
    .convolve = convolve256, .windows = WINDOWS256, .most_dense = 1 << 16,
};
#endif
