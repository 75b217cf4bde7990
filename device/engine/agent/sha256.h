/* SHA-256 (FIPS 180-4). */
#ifndef AGENT_SHA256_H
#define AGENT_SHA256_H
#include <stddef.h>
#include <stdint.h>

void sha256(const void *data, size_t n, unsigned char to[32]);
#endif
