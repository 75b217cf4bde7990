/* Decimal numbers of JSON as the doubles nearest to them, ties to even; and whether floats are numbers at all. */
#ifndef AGENT_NUMBER_H
#define AGENT_NUMBER_H
#include <stdint.h>
#include <string.h>

/* a * b: its upper 64 bits; the lower in *low. */
static inline uint64_t multiply(uint64_t a, uint64_t b, uint64_t *low)
{
#ifdef __SIZEOF_INT128__
    const unsigned __int128 product = (unsigned __int128)a * b;
    *low = (uint64_t)product;
    return (uint64_t)(product >> 64);
#else
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    const uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (uint32_t)middle;
    *low = other << 32 | (uint32_t)(a0 * b0);
    return a1 * b1 + (middle >> 32) + (other >> 32);
#endif
}

static inline int are_finite(const float *x, uint32_t n)
{
    uint32_t most = 0;              /* the largest exponent; that of NaN and infinity is all ones */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7f800000;
        most = bits > most ? bits : most;
    }
    return most < 0x7f800000;
}

/* Eight bytes may be read behind a line that holds numbers. */
enum { LINE_SLACK = 8 };

/* Eight characters as digits: each less '0'. */
static inline uint64_t eight_digits(const char *s)
{
    uint64_t bytes;
    memcpy(&bytes, s, sizeof bytes);
    return bytes ^ 0x3030303030303030u;
}

/* How many of the first of them are digits: the highest bit of the first byte above 9 is set, regardless of what follows. */
static inline unsigned count_digits(uint64_t eight)
{
    const uint64_t others = ((eight + 0x7676767676767676u) | eight) & 0x8080808080808080u;
    return others ? (unsigned)__builtin_ctzll(others) / 8 : 8;
}

/* Read a number whose form JSON allows, and behind which something stands that is no digit. *end: where it ends;
 * *is_whole: it has neither fraction nor exponent. The nearest double, within 1e-271 and 1e288; what is smaller or
 * larger, and of no use as a float32, may be 0 or infinite. Takes some 150 instructions, but where that does not
 * decide the rounding: then strtod does, whose long double is software on AArch64. */
double read_number(const char *s, const char **end, int *is_whole);
#endif
