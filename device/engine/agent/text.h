/* Text that is written: replies, into a buffer that is never overrun. Numbers are written so that whoever reads them gets
 * the same ones. */
#ifndef AGENT_TEXT_H
#define AGENT_TEXT_H
#include <stddef.h>
#include <stdint.h>

#define COUNT_OF(array) (int)(sizeof(array) / sizeof *(array))
#define STRING_OF(word) #word
#define STRING(macro) STRING_OF(macro) /* of a number of constants.h */

struct text { char *begin, *at, *end; };

static void put_char(struct text *t, char c)
{
    if (t->at < t->end) *t->at++ = c;
}

__attribute__((noinline)) static void put_bytes(struct text *t, const char *s, size_t n)
{
    while (n--) put_char(t, *s++);
}

__attribute__((noinline)) static void put(struct text *t, const char *s)
{
    while (*s) put_char(t, *s++);
}

static size_t length_of(const char *s)
{
    size_t n = 0;
    while (s[n]) n++;
    return n;
}

static void put_unsigned(struct text *t, uint64_t x)
{
    char digits[20];
    int n = 0;
    do digits[n++] = (char)('0' + x % 10); while (x /= 10);
    while (n) put_char(t, digits[--n]);
}

static void put_signed(struct text *t, int64_t x)
{
    if (x < 0) put_char(t, '-');
    put_unsigned(t, x < 0 ? 0 - (uint64_t)x : (uint64_t)x);
}

/* Bytes as a JSON word; what is not ASCII must be UTF-8. */
static void put_word(struct text *t, const char *s, size_t n)
{
    put_char(t, '"');
    for (; n--; s++) {
        const unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') put_char(t, '\\'), put_char(t, (char)c);
        else if (c >= 32 && c != 127) put_char(t, (char)c);
        else put(t, "\\u00"), put_char(t, "0123456789abcdef"[c >> 4]), put_char(t, "0123456789abcdef"[c & 15]);
    }
    put_char(t, '"');
}

/* A finite double, exact in its first twenty digits: m * 2^e is m * 5^-e / 10^-e, or m * 2^e, and all of it is whole. */
static void put_double(struct text *t, double x)
{
    union { double x; uint64_t bits; } u = {x};
    const int field = (int)(u.bits >> 52 & 2047);
    uint64_t m = (u.bits & ((1ull << 52) - 1)) | (field ? 1ull << 52 : 0);
    int e = (field ? field : 1) - 1075;
    if (u.bits >> 63) put_char(t, '-');
    if (!m) {
        put(t, "0.0");
        return;
    }
    while (!(m & 1)) m >>= 1, e++;
    uint32_t part[130];             /* base 10^9, the lowest first: at most 1074 digits */
    int parts = 0;
    for (; m; m /= 1000000000u) part[parts++] = (uint32_t)(m % 1000000000u);
    for (int i = 0; i < (e < 0 ? -e : e); i++) {
        uint32_t over = 0;
        for (int k = 0; k < parts; k++) {
            const uint64_t product = (uint64_t)part[k] * (e < 0 ? 5 : 2) + over;
            part[k] = (uint32_t)(product % 1000000000u), over = (uint32_t)(product / 1000000000u);
        }
        if (over) part[parts++] = over;
    }
    char digits[1200];
    int n = 0;
    for (int k = parts - 1; k >= 0; k--)
        for (uint32_t unit = 100000000; unit; unit /= 10) {
            const char digit = (char)('0' + part[k] / unit % 10);
            if (n || digit != '0') digits[n++] = digit;
        }
    int exponent = n - 1 + (e < 0 ? e : 0); /* of the first digit */
    int shown = n < 20 ? n : 20;
    while (shown > 1 && digits[shown - 1] == '0') shown--;
    if (exponent >= 0 && exponent < 20) {
        for (int i = 0; i <= exponent; i++) put_char(t, i < shown ? digits[i] : '0');
        put_char(t, '.');
        if (shown <= exponent + 1) put_char(t, '0');
        for (int i = exponent + 1; i < shown; i++) put_char(t, digits[i]);
    } else {
        put_char(t, digits[0]), put_char(t, '.');
        if (shown == 1) put_char(t, '0');
        put_bytes(t, digits + 1, (size_t)shown - 1);
        put_char(t, 'e'), put_signed(t, exponent);
    }
}
#endif
