/* Division for processors that have none, ARMv6: what the compiler calls there. The engine divides sizes, never values. */
#if defined __arm__ && !defined __ARM_FEATURE_IDIV
unsigned __udivsi3(unsigned a, unsigned b);
unsigned __umodsi3(unsigned a, unsigned b);
int __divsi3(int a, int b);
int __modsi3(int a, int b);

static unsigned divide(unsigned a, unsigned b, unsigned *left)
{
    unsigned quotient = 0, rest = 0;
    for (int bit = 31; bit >= 0; bit--) {
        const unsigned carry = rest >> 31;
        rest = rest << 1 | (a >> bit & 1u);
        if (carry || rest >= b) rest -= b, quotient |= 1u << bit;
    }
    *left = rest;
    return quotient;
}

static unsigned magnitude(int a) { return a < 0 ? 0u - (unsigned)a : (unsigned)a; }

unsigned __udivsi3(unsigned a, unsigned b)
{
    unsigned left;
    return divide(a, b, &left);
}

unsigned __umodsi3(unsigned a, unsigned b)
{
    unsigned left;
    divide(a, b, &left);
    return left;
}

int __divsi3(int a, int b)
{
    const unsigned quotient = __udivsi3(magnitude(a), magnitude(b));
    return (int)((a < 0) != (b < 0) ? 0u - quotient : quotient);
}

int __modsi3(int a, int b)
{
    const unsigned left = __umodsi3(magnitude(a), magnitude(b));
    return (int)(a < 0 ? 0u - left : left);
}
#else
typedef int nothing; /* an empty file is no C */
#endif
