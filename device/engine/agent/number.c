#include "number.h"

#include <stdlib.h>

enum { MAX_EXPONENT = 27 }; /* 5^27 is the largest power of five in 64 bits */

static uint64_t power_of_five(int n)
{
    static const uint64_t POWERS[] = {1, 5, 25, 125, 625, 3125, 15625, 78125, 390625};
    uint64_t power = POWERS[n % 9];
    for (n /= 9; n; n--) power *= 1953125;
    return power;
}

/* m * 2^e rounded, where `has_more` says that something below m is not 0; m is not 0, and the result is normal. */
static double round_to_double(uint64_t m, int e, int has_more)
{
    const int zeros = __builtin_clzll(m);
    m <<= zeros, e -= zeros;
    uint64_t kept = m >> 11;
    const uint64_t rest = m & 2047;
    if (rest > 1024 || (rest == 1024 && (has_more || kept & 1))) kept++;
    union { uint64_t bits; double x; } power = {(uint64_t)(e + 11 + 1023) << 52};
    return (double)kept * power.x; /* kept has 53 bits, or is 2^53: exact */
}

/* m * 10^e for m > 0 and 0 <= e <= MAX_EXPONENT: a product of 128 bits, rounded once. */
static double scale_up(uint64_t m, int e)
{
    uint64_t low;
    const uint64_t high = multiply(m, power_of_five(e), &low);
    if (!high) return round_to_double(low, e, 0);
    const int zeros = __builtin_clzll(high);
    const uint64_t top = zeros ? high << zeros | low >> (64 - zeros) : high;
    return round_to_double(top, 64 - zeros + e, low << zeros != 0);
}

/* m / 10^e for m > 0 and 0 < e <= MAX_EXPONENT: a quotient of at least 63 bits and whether something is left. Two
 * digits of 32 bits, each guessed from the divisor's upper half and corrected (Knuth, The Art of Computer
 * Programming 2, 4.3.1, algorithm D). */
static double scale_down(uint64_t m, int e)
{
    const uint64_t five = power_of_five(e);
    const int zeros_m = __builtin_clzll(m), zeros_five = __builtin_clzll(five);
    const uint64_t divisor = five << zeros_five, high = divisor >> 32, low = (uint32_t)divisor;
    const uint64_t dividend = m << zeros_m;
    uint64_t rest = dividend >> 1, quotient = 0;
    for (int i = 0; i < 2; i++) {
        const uint64_t next = i ? 0 : (dividend & 1) << 31; /* the dividend's lower half has one bit */
        uint64_t digit = rest / high, left = rest - digit * high;
        while (digit >> 32 || digit * low > (left << 32 | next)) {
            digit--, left += high;
            if (left >> 32) break;
        }
        rest = (rest << 32 | next) - digit * divisor;
        quotient = quotient << 32 | digit;
    }
    return round_to_double(quotient, zeros_five - zeros_m - 63 - e, rest != 0);
}

double read_number(const char *s, const char **end, int *is_whole)
{
    const char *const begin = s;
    const int is_negative = *s == '-';
    uint64_t m = 0;
    unsigned digit;
    int64_t exponent = 0;
    s += is_negative;
    while (*s == '0') s++;
    const char *first = s;          /* digit that is not 0 */
    for (; (digit = (unsigned)*s - '0') < 10; s++) m = 10 * m + digit;
    int64_t digits = s - first;
    *is_whole = *s != '.';
    if (!*is_whole) {
        const char *const point = ++s;
        if (!digits) {
            while (*s == '0') s++;
            first = s;
        }
        const char *const from = s;
        for (; (digit = (unsigned)*s - '0') < 10; s++) m = 10 * m + digit;
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
    double x;
    if (digits > 19 || exponent < -MAX_EXPONENT || exponent > MAX_EXPONENT) return strtod(begin, 0);
    if (!m) x = 0.0;
    else if (exponent < 0) x = scale_down(m, (int)-exponent);
    else x = scale_up(m, (int)exponent);
    return is_negative ? -x : x;
}
