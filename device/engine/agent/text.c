#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "constants.h"
#include "number.h"

void put_bytes(struct text *t, const char *from, size_t n)
{
    const size_t room = (size_t)(t->end - t->at);
    if (n > room) n = room;
    memcpy(t->at, from, n);
    t->at += n;
}

void put(struct text *t, const char *s) { put_bytes(t, s, strlen(s)); }

void put_unsigned(struct text *t, uint64_t x)
{
    char digits[20];
    int n = COUNT_OF(digits);
    do digits[--n] = (char)('0' + x % 10); while (x /= 10);
    put_bytes(t, digits + n, sizeof digits - (size_t)n);
}

void put_signed(struct text *t, int64_t x)
{
    if (x < 0) put_char(t, '-');
    put_unsigned(t, x < 0 ? 0 - (uint64_t)x : (uint64_t)x);
}

void print(struct text *t, const char *format, ...)
{
    const size_t room = (size_t)(t->end - t->at);
    va_list values;
    va_start(values, format);
    const int n = vsnprintf(t->at, room, format, values);
    va_end(values);
    if (n > 0) t->at += (size_t)n < room ? (size_t)n : room;
}

void put_string(struct text *t, const char *s, size_t n)
{
    put_char(t, '"');
    for (; n--; s++) {
        const unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') put_char(t, '\\'), put_char(t, (char)c);
        else if (c == 0xed && n >= 2 && (unsigned char)s[1] >= 0xa0) { /* half a surrogate pair: of an escape */
            print(t, "\\u%04x", 0xd000u | ((unsigned char)s[1] & 63u) << 6 | ((unsigned char)s[2] & 63u));
            s += 2, n -= 2;
        } else if (c >= 32 && c != 127) put_char(t, (char)c);
        else print(t, "\\u%04x", c);
    }
    put_char(t, '"');
}

/* ---- shortest decimal: Schubfach (R. Giulietti, "The Schubfach way to render doubles", 2020) --------------------- */

/* The upper 64 bits of g * c / 2^64, with the last bit set where anything below it was not 0. */
static uint64_t round_to_odd(const uint64_t g[2], uint64_t c)
{
    uint64_t low, next;
    const uint64_t below = multiply(g[1], c, &low);
    uint64_t high = multiply(g[0], c, &next);
    next += below;
    high += next < below;
    return high | (next > 1);
}

/* digits * 10^exponent, shortest and closest in the interval that rounds to m * 2^e. */
static uint64_t shorten(uint64_t m, int e, int *exponent)
{
    const int is_even = !(m & 1), is_closer = m == 1ull << 52 && e > -1074;
    const int k = (e * 1262611 - (is_closer ? 524031 : 0)) >> 22; /* floor(log10(2^e)), or of 3/4 * 2^e */
    const int h = e + ((-k * 1741647) >> 19) + 1;                 /* 1741647 / 2^19 is log2(10) */
    const uint64_t *g = POWERS_OF_TEN[-k - LEAST_POWER];
    const uint64_t lower = round_to_odd(g, (4 * m - 2 + (uint64_t)is_closer) << h) + (uint64_t)!is_even;
    const uint64_t value = round_to_odd(g, 4 * m << h);
    const uint64_t upper = round_to_odd(g, (4 * m + 2) << h) - (uint64_t)!is_even;
    const uint64_t s = value / 4;
    if (s >= 10) { /* one digit less */
        const uint64_t tens = s / 10;
        const int below_fits = lower <= 40 * tens, above_fits = 40 * tens + 40 <= upper;
        if (below_fits != above_fits) return *exponent = k + 1, tens + (uint64_t)above_fits;
    }
    *exponent = k;
    const int below_fits = lower <= 4 * s, above_fits = 4 * s + 4 <= upper;
    if (below_fits != above_fits) return s + (uint64_t)above_fits;
    const uint64_t middle = 4 * s + 2;
    return s + (uint64_t)(value > middle || (value == middle && s & 1));
}

void put_double(struct text *t, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int field = (int)(bits >> 52 & 2047);
    const uint64_t fraction = bits & ((1ull << 52) - 1);
    if (bits >> 63) put_char(t, '-');
    if (!field && !fraction) {
        put(t, "0.0");
        return;
    }
    int exponent, n = 20;
    uint64_t value = shorten(field ? fraction | 1ull << 52 : fraction, (field ? field : 1) - 1075, &exponent);
    char digits[20];
    while (value % 10 == 0) value /= 10, exponent++;
    do digits[--n] = (char)('0' + value % 10); while (value /= 10);
    const char *first = digits + n;
    const int count = 20 - n, point = count + exponent; /* digits before the point */
    if (point > 20 || point < -4) {
        put_char(t, *first), put_char(t, '.');
        if (count == 1) put_char(t, '0');
        put_bytes(t, first + 1, (size_t)count - 1);
        put_char(t, 'e'), put_signed(t, point - 1);
    } else if (point <= 0) {
        put_bytes(t, "0.0000", 2 + (size_t)-point), put_bytes(t, first, (size_t)count);
    } else {
        put_bytes(t, first, (size_t)(point < count ? point : count));
        for (int i = count; i < point; i++) put_char(t, '0');
        put_char(t, '.');
        if (point >= count) put_char(t, '0');
        else put_bytes(t, first + point, (size_t)(count - point));
    }
}
