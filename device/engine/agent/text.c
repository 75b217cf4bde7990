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

static const char PAIRS[] = "00010203040506070809101112131415161718192021222324252627282930313233343536373839"
                            "40414243444546474849505152535455565758596061626364656667686970717273747576777879"
                            "8081828384858687888990919293949596979899";

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

/* The digits of a number that has at most 17, as many as it has, in front of `end`; where they begin. */
static char *write_digits(uint64_t value, char *end)
{
    uint32_t part = (uint32_t)(value % 100000000); /* eight digits at a time: divisions of 32 bits are cheaper */
    for (uint64_t left = value / 100000000; left; part = (uint32_t)(left % 100000000), left /= 100000000)
        for (int i = 0; i < 4; i++, part /= 100) end -= 2, memcpy(end, PAIRS + 2 * (part % 100), 2);
    for (; part >= 10; part /= 100) end -= 2, memcpy(end, PAIRS + 2 * (part % 100), 2);
    if (part) *--end = (char)('0' + part);
    return end;
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
    int exponent;
    char digits[48], spare[64], *const end = digits + 24; /* copies of a fixed size, which are not calls, read beyond */
    char *const room = t->end - t->at >= (ptrdiff_t)sizeof spare ? t->at : spare;
    const uint64_t value = shorten(field ? fraction | 1ull << 52 : fraction, (field ? field : 1) - 1075, &exponent);
    const char *const first = write_digits(value, end);
    const int point = (int)(end - first) + exponent; /* digits before the point */
    int count = (int)(end - first), size;
    while (first[count - 1] == '0') count--;
    if (point > 20 || point < -4) {
        room[0] = *first, room[1] = '.', room[2] = '0';
        memcpy(room + 2 + (count == 1), first + 1, 20);
        size = count == 1 ? 3 : count + 1;
    } else if (point < 1) {
        memcpy(room, "0.0000", 6), memcpy(room + 2 - point, first, 20);
        size = 2 - point + count;
    } else if (point >= count) {
        memcpy(room, first, 20);
        for (int i = count; i < point; i++) room[i] = '0';
        room[point] = '.', room[point + 1] = '0';
        size = point + 2;
    } else {
        memcpy(room, first, 20), memcpy(room + point + 1, first + point, 20);
        room[point] = '.';
        size = count + 1;
    }
    if (room == spare) put_bytes(t, room, (size_t)size);
    else t->at += size;
    if (point > 20 || point < -4) put_char(t, 'e'), put_signed(t, point - 1);
}
