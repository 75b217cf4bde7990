#include "sha256.h"

#include <string.h>

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void sha256_block(uint32_t h[8], const unsigned char *p)
{
    static const uint32_t K[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
    };
    uint32_t w[16], s[8];           /* the last words of the schedule: those of all rounds would not stay near */
    for (int i = 0; i < 16; i++, p += 4)
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    memcpy(s, h, sizeof s);
    uint32_t differ = s[1] ^ s[2];  /* of the majority, which the round before has computed */
/* Round i + k, 0 <= k < 16: instead of the state, its names move on, so that it stays in registers. */
#define S(n) s[((n) - k) & 7]
#define ROUND(k_) \
    { \
        enum { k = k_ }; \
        S(7) += (rotate(S(4), 6) ^ rotate(S(4), 11) ^ rotate(S(4), 25)) + (S(6) ^ (S(4) & (S(5) ^ S(6)))) + K[i + k] + w[k]; \
        S(3) += S(7); \
        const uint32_t next = S(0) ^ S(1); \
        S(7) += (rotate(S(0), 2) ^ rotate(S(0), 13) ^ rotate(S(0), 22)) + (S(1) ^ (differ & next)); \
        differ = next; \
    }
#define NEXT_ROUND(k) \
    { \
        const uint32_t x = w[(k + 1) & 15], y = w[(k + 14) & 15]; \
        w[k] += (rotate(x, 7) ^ rotate(x, 18) ^ x >> 3) + w[(k + 9) & 15] + (rotate(y, 17) ^ rotate(y, 19) ^ y >> 10); \
    } \
    ROUND(k)
#define EACH(DO) \
    DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)
    enum { i = 0 };
    EACH(ROUND)
    for (int i = 16; i < 64; i += 16) { EACH(NEXT_ROUND) }
#undef EACH
#undef NEXT_ROUND
#undef ROUND
#undef S
    for (int i = 0; i < 8; i++) h[i] += s[i];
}

void sha256(const void *data, size_t n, unsigned char to[32])
{
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const unsigned char *p = data;
    unsigned char last[128] = {0};
    size_t i = 0;
    for (; i + 64 <= n; i += 64) sha256_block(h, p + i);
    const size_t rest = n - i, size = rest < 56 ? 64 : 128;
    memcpy(last, p + i, rest);
    last[rest] = 0x80;
    for (int k = 0; k < 8; k++) last[size - 1 - (size_t)k] = (unsigned char)((uint64_t)n * 8 >> 8 * k);
    for (size_t k = 0; k < size; k += 64) sha256_block(h, last + k);
    for (int k = 0; k < 32; k++) to[k] = (unsigned char)(h[k / 4] >> (24 - 8 * (k % 4)));
}
