/* Text that is written: replies, into a buffer that is never overrun. What does not fit is cut, and `at` is `end`
 * then. */
#ifndef AGENT_TEXT_H
#define AGENT_TEXT_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define COUNT_OF(array) (int)(sizeof(array) / sizeof *(array))
#define STRINGIFY_(word) #word
#define STRINGIFY(macro) STRINGIFY_(macro) /* of a number of constants.h */

struct text { char *begin, *at, *end; };

static inline struct text text_of(char *room, size_t size) { return (struct text){room, room, room + size}; }
static inline size_t text_size(const struct text *t) { return (size_t)(t->at - t->begin); }
static inline void put_char(struct text *t, char c)
{
    if (t->at < t->end) *t->at++ = c;
}

void put_bytes(struct text *, const char *from, size_t n);
static inline void put(struct text *t, const char *s) { put_bytes(t, s, strlen(s)); }
void put_unsigned(struct text *, uint64_t);
void put_signed(struct text *, int64_t);
/* As printf; not where time counts. */
__attribute__((format(printf, 2, 3))) void print(struct text *, const char *format, ...);
/* Bytes as a JSON string; what is not ASCII must be UTF-8. */
void put_string(struct text *, const char *s, size_t n);
/* A finite double in the fewest digits that are read back as the same double. */
void put_double(struct text *, double);
#endif
