#include "number.h"

#include <math.h>
#include <stdlib.h>

#include "constants.h"

enum { LEAST_EXPONENT = -290, LARGEST_EXPONENT = 288 }; /* of ten: the result is normal after any 19 digits */

/* m * 10^exponent rounded to the nearest, for m > 0; 0 where that cannot be decided. The power in the table is too
 * large by less than one unit of its 128 bits, and so is the product by less than one of `middle`: only where it
 * lies there just above a half may the number itself lie below (compare D. Lemire, "Number parsing at a gigabyte per
 * second", 2021). */
static int scale(uint64_t m, int exponent, double *x)
{
    const uint64_t *const power = POWERS_OF_TEN[exponent - LEAST_POWER];
    const int zeros = __builtin_clzll(m);
    uint64_t low, middle;
    const uint64_t below = multiply(power[1], m << zeros, &low);
    uint64_t high = multiply(power[0], m << zeros, &middle);
    middle += below, high += middle < below;
    int shift = ((exponent * 1741647) >> 19) + 12 - zeros; /* 1741647 / 2^19 is log2(10) */
    if (!(high >> 63)) high = high << 1 | middle >> 63, middle <<= 1, shift--;
    const uint64_t rest = high & 2047;
    if (rest == 1024 && middle <= 2) return 0;
    const union { uint64_t bits; double x; } two = {(uint64_t)(shift + 1023) << 52};
    *x = (double)((high >> 11) + (rest >= 1024)) * two.x; /* a whole number of at most 2^53: exact */
    return 1;
}

/* Digits at *s and behind it, added to m; *s then stands behind them. */
static uint64_t read_digits(const char **s, uint64_t m)
{
    static const uint32_t TENS[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000};
    for (unsigned count = 8; count == 8; *s += count) {
        uint64_t eight = eight_digits(*s);
        count = count_digits(eight);
        if (!count) break;
        eight <<= 64 - 8 * count;   /* zeros in front; then pairs, then fours, then all of them at once */
        eight = (eight * 10 + (eight >> 8)) & 0x00ff00ff00ff00ffu;
        eight = (eight * 100 + (eight >> 16)) & 0x0000ffff0000ffffu;
        m = TENS[count] * m + (uint32_t)(eight * 10000 + (eight >> 32));
    }
    return m;
}

/* The first 19 digits from `first`, of a number that has more. */
static uint64_t read_leading(const char *first)
{
    uint64_t m = 0;
    for (int n = 0; n < 19; first++) if (*first != '.') m = 10 * m + (uint64_t)(*first - '0'), n++;
    return m;
}

double read_number(const char *s, const char **end, int *is_whole)
{
    const char *const begin = s;
    const int is_negative = *s == '-';
    uint64_t m;
    unsigned digit;
    int64_t exponent = 0;
    s += is_negative;
    while (*s == '0') s++;
    const char *first = s;          /* digit that is not 0 */
    for (m = 0; (digit = (unsigned)*s - '0') < 10; s++) m = 10 * m + digit; /* few, as a rule */
    int64_t digits = s - first;
    *is_whole = *s != '.';
    if (!*is_whole) {
        const char *const point = ++s;
        if (!digits) {
            while (*s == '0') s++;
            first = s;
        }
        const char *const from = s;
        m = read_digits(&s, m);
        exponent = point - s, digits += s - from;
    }
    if ((*s | 32) == 'e') {
        int64_t stated = 0;
        const int is_down = *++s == '-';
        *is_whole = 0;
        for (s += *s == '-' || *s == '+'; (digit = (unsigned)*s - '0') < 10; s++)
            if (stated < 1 << 24) stated = 10 * stated + digit;
        exponent += is_down ? -stated : stated;
    }
    *end = s;
    const int is_cut = digits > 19;
    if (is_cut) m = read_leading(first), exponent += digits - 19;
    double x = 0.0, next = 0.0;
    if (m && exponent > LARGEST_EXPONENT) x = INFINITY;
    else if (m && exponent >= LEAST_EXPONENT) {
        /* What was cut lies between m and m + 1. */
        const int is_decided = scale(m, (int)exponent, &x) && (!is_cut || scale(m + 1, (int)exponent, &next));
        if (!is_decided || (is_cut && x != next)) return strtod(begin, 0);
    }
    return is_negative ? -x : x;
}
