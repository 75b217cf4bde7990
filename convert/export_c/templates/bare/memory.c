/* The three functions of the C library that the engine calls, for a build without one. */
#include <stddef.h>

void *memcpy(void *to, const void *from, size_t n)
{
    unsigned char *t = to;
    for (const unsigned char *f = from; n--;) *t++ = *f++;
    return to;
}

void *memset(void *to, int value, size_t n)
{
    for (unsigned char *t = to; n--;) *t++ = (unsigned char)value;
    return to;
}

int memcmp(const void *one, const void *other, size_t n)
{
    const unsigned char *a = one, *b = other;
    for (; n--; a++, b++) if (*a != *b) return *a - *b;
    return 0;
}
