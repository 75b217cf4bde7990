/* A decimal number of JSON as the double nearest to it, ties to even, as Python reads it. */
#ifndef AGENT_NUMBER_H
#define AGENT_NUMBER_H
#include <stddef.h>
#include <stdint.h>

/* a * 2^63 / d, both with their highest bit, and whether something is left: two digits of 32 bits, each guessed from the
 * divisor's upper one and corrected (Knuth, The Art of Computer Programming 2, 4.3.1, algorithm D). */
static uint64_t divided(uint64_t a, uint64_t d, int *more)
{
    const uint64_t d1 = d >> 32, d0 = (uint32_t)d;
    uint64_t rest = a >> 1, quotient = 0;
    for (int i = 0; i < 2; i++) {
        const uint64_t next = i ? 0 : (a & 1) << 31; /* the dividend's lower half has one bit */
        uint64_t digit = rest / d1, left = rest - digit * d1;
        while (digit >> 32 || digit * d0 > (left << 32 | next)) {
            digit--, left += d1;
            if (left >> 32) break;
        }
        rest = (rest << 32 | next) - digit * d;
        quotient = quotient << 32 | digit;
    }
    *more = rest != 0;
    return quotient;
}

/* a * b: its upper 64 bits; the lower in *low. */
static uint64_t product_of(uint64_t a, uint64_t b, uint64_t *low)
{
    const uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    const uint64_t middle = a1 * b0 + (a0 * b0 >> 32), other = a0 * b1 + (uint32_t)middle;
    *low = other << 32 | (uint32_t)(a0 * b0);
    return a1 * b1 + (middle >> 32) + (other >> 32);
}

/* m * 2^e rounded, where `more` says that something below m is not 0; m is not 0. */
static double rounded(uint64_t m, int e, int more)
{
    union { uint64_t bits; double x; } u;
    const int zeros = __builtin_clzll(m);
    m <<= zeros, e -= zeros;        /* the first bit is the highest: m / 2^63 lies in [1, 2) */
    int exponent = e + 63 + 1023, drop = 11;
    if (exponent < 1) drop += 1 - exponent, exponent = 0; /* a subnormal number has fewer bits */
    if (drop > 64) return 0.0;
    uint64_t kept = drop == 64 ? 0 : m >> drop;
    const uint64_t rest = drop == 64 ? m : m & ((1ull << drop) - 1), half = 1ull << (drop - 1);
    if (rest > half || (rest == half && (more || kept & 1))) kept++;
    if (exponent && kept >> 53) kept >>= 1, exponent++;
    if (!exponent && kept >> 52) exponent = 1;
    if (exponent > 2046) return __builtin_inf();
    u.bits = (uint64_t)exponent << 52 | (kept & ((1ull << 52) - 1));
    return u.x;
}

/* Whole numbers of any size, base 2^32, the lowest first: for the few that have many digits, or a large exponent. */
enum { WORDS = 160, MOST_DIGITS = 800 };
struct large { uint32_t word[WORDS]; int used; };

static void times_plus(struct large *x, uint32_t factor, uint32_t add)
{
    uint64_t over = add;
    for (int i = 0; i < x->used; i++) over += (uint64_t)x->word[i] * factor, x->word[i] = (uint32_t)over, over >>= 32;
    if (over && x->used < WORDS) x->word[x->used++] = (uint32_t)over;
}

static void doubled(struct large *x) { times_plus(x, 2, 0); }

static int is_less(const struct large *a, const struct large *b)
{
    if (a->used != b->used) return a->used < b->used;
    for (int i = a->used - 1; i >= 0; i--) if (a->word[i] != b->word[i]) return a->word[i] < b->word[i];
    return 0;
}

static void subtract(struct large *a, const struct large *b)
{
    int64_t over = 0;
    for (int i = 0; i < a->used; i++) {
        over += (int64_t)a->word[i] - (i < b->used ? b->word[i] : 0);
        a->word[i] = (uint32_t)over, over >>= 32;
    }
    while (a->used && !a->word[a->used - 1]) a->used--;
}

static int bits_of(const struct large *x) { return x->used ? 32 * x->used - __builtin_clz(x->word[x->used - 1]) : 0; }

/* digits * 10^e, of `n` digits; what lies behind them is not 0 if `more`. */
static double slowly(const char *digits, int n, int e, int more)
{
    static struct large top, bottom;
    top.used = bottom.used = 0;
    for (int i = 0; i < n; i++) times_plus(&top, 10, (uint32_t)(digits[i] - '0'));
    if (!top.used) return 0.0;
    if (n + e > 310) return __builtin_inf();
    if (n + e < -330) return 0.0;
    times_plus(&bottom, 1, 1);
    for (int i = 0; i < e; i++) times_plus(&top, 10, 0);
    for (int i = 0; i < -e; i++) times_plus(&bottom, 10, 0);
    int power = bits_of(&top) - bits_of(&bottom) - 1;
    for (int i = 0; i < power; i++) doubled(&bottom);
    for (int i = 0; i < -power; i++) doubled(&top);
    uint64_t quotient = 0;          /* 2^power times top / bottom, which lies between 1 and 4: 62 bits of it */
    for (int i = 0; i < 62; i++) {
        quotient <<= 1;
        if (i) doubled(&top);
        while (!is_less(&top, &bottom)) subtract(&top, &bottom), quotient++;
    }
    return rounded(quotient, power - 61, more || top.used);
}

/* All of its digits, zeros in front apart, for `slowly`. */
static double slowly_read(const char *s, const char *end, int e)
{
    static char digits[MOST_DIGITS];
    int n = 0, more = 0;
    for (; s < end && (*s | 32) != 'e'; s++) {
        if (*s == '.' || (!n && *s == '0')) continue;
        if (n < MOST_DIGITS) digits[n++] = *s;
        else more |= *s != '0', e++;
    }
    return slowly(digits, n, e, more);
}

/* The first 19 digits from `first`, of a number that has more. */
static uint64_t leading(const char *first)
{
    uint64_t m = 0;
    for (int n = 0; n < 19; first++) if (*first != '.') m = 10 * m + (uint64_t)(*first - '0'), n++;
    return m;
}

/* Read a number whose form JSON allows, and behind which stands something else before `end`, or at it; *behind: where it
 * ends. `whole`: it has neither fraction nor exponent. */
static double number_that_begins(const char *s, const char *end, const char **behind, int *whole)
{
    const int negative = *s == '-';
    const char *const begin = s += negative;
    int64_t e = 0;
    uint64_t m = 0;                 /* of up to 19 digits, zeros in front apart */
    unsigned digit;
    while (*s == '0') s++;
    const char *first = s;
    for (; (digit = (unsigned)*s - '0') < 10; s++) m = 10 * m + digit;
    int n = (int)(s - first);
    *whole = *s != '.';
    if (!*whole) {
        const char *const point = ++s;
        if (!n) {
            while (*s == '0') s++;
            first = s;
        }
        const char *const from = s;
        for (; (digit = (unsigned)*s - '0') < 10; s++) m = 10 * m + digit;
        e = point - s, n += (int)(s - from);
    }
    if (n > 19) m = leading(first);
    const char *const last = s;
    if (s < end && (*s | 32) == 'e') {
        const int down = *++s == '-';
        int64_t stated = 0;
        *whole = 0;
        for (s += *s == '-' || *s == '+'; s < end && *s >= '0' && *s <= '9'; s++) stated = stated < 100000 ? 10 * stated + *s - '0' : stated;
        e += down ? -stated : stated;
    }
    *behind = s;
    double x = 0.0;
    static const uint64_t FIVE[28] = {1, 5, 25, 125, 625, 3125, 15625, 78125, 390625, 1953125, 9765625, 48828125, 244140625, 1220703125, 6103515625, 30517578125, 152587890625, 762939453125, 3814697265625, 19073486328125, 95367431640625, 476837158203125, 2384185791015625, 11920928955078125, 59604644775390625, 298023223876953125, 1490116119384765625, 7450580596923828125};
    if (!m && n <= 19) x = 0.0;
    else if (n <= 15 && e <= 0 && e >= -22) {
        /* Both are doubles, and one division is rounded once. */
        static const double TEN[23] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
        x = (double)m / TEN[-e];
    } else if (n <= 19 && e >= -27 && e < 0) {
        /* m / 5^-e to 64 bits and what is left: exact. The divisor's first bit is moved up, and so is the dividend's. */
        const uint64_t d = FIVE[-e] << __builtin_clzll(FIVE[-e]), a = m << __builtin_clzll(m);
        const int power = __builtin_clzll(FIVE[-e]) - __builtin_clzll(m);
        int left;
        const uint64_t q = divided(a, d, &left); /* between 2^62 and 2^64 */
        x = rounded(q, power - 63 + (int)e, left);
    } else if (n <= 19 && e >= 0 && e <= 27) {
        uint64_t low;
        const uint64_t high = product_of(m, FIVE[e], &low);
        if (!high) x = rounded(low, (int)e, 0);
        else {
            const int zeros = __builtin_clzll(high);
            x = rounded(zeros ? high << zeros | low >> (64 - zeros) : high, 64 - zeros + (int)e, low << zeros != 0);
        }
    } else if (e > 100000) x = n ? __builtin_inf() : 0.0;
    else if (e < -100000) x = 0.0;
    else x = slowly_read(begin, last, (int)e);
    return negative ? -x : x;
}

static double read_number(const char *s, const char *end, int *whole)
{
    const char *behind;
    return number_that_begins(s, end, &behind, whole);
}
#endif
