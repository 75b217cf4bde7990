/* One line of JSON: its form is checked as a whole, and with it the members of its object are found. Nothing is
 * allocated; values stay where they are in the line, behind which LINE_SLACK bytes may be read, and the first is no
 * digit. As in Python, NaN and Infinity are numbers, too. */
#ifndef AGENT_JSON_H
#define AGENT_JSON_H
#include <stddef.h>

#include "text.h"

enum { MAX_MEMBERS = 32, MAX_KEY = 64 };
enum kind { MISSING, STRING, NUMBER, LIST, OBJECT, TRUE, FALSE, NULL_VALUE };

struct value { enum kind kind; const char *begin, *end; };
struct member { char key[MAX_KEY]; size_t length; struct value value; };
struct object { struct member member[MAX_MEMBERS]; int count; };

/* Where the blanks that begin at s end. */
static inline const char *skip_blanks(const char *s, const char *end)
{
    while (s < end && (unsigned char)*s <= ' ' && (*s == ' ' || *s == '\t' || *s == '\n' || *s == '\r')) s++;
    return s;
}

static inline int is_digit(const char *s, const char *end) { return s < end && (unsigned)*s - '0' < 10; }
/* Behind a character of UTF-8, or NULL where it is none: no overlong form, no surrogate, nothing beyond U+10FFFF. */
const char *skip_utf8(const char *s, const char *end);
int hex_digit(char c);              /* -1 for what is none */
/* The value that begins at s, of kind MISSING if there is none; *why is then the reason. */
struct value read_value(const char *s, const char *end, int depth, const char **why);
/* The first element of a list, or the one behind `at`; of kind MISSING behind the last. The list's form was checked. */
struct value first_element(struct value list);
struct value next_element(struct value at, struct value list);
/* The object that begins at s and its members: of a key that stands twice, the last. Of those beyond MAX_MEMBERS the
 * last places keep "op", "id" and one other: nobody knows that many keys. NULL and *why if there is no object. */
const char *read_members(const char *s, const char *end, struct object *to, const char **why);
struct value member_of(const struct object *, const char *key);
int is_key(const struct member *, const char *word);
int equals(const char *word, const char *s, size_t n);
int is_string(struct value, const char *word);
int is_one_of(struct value, const char *const *words);
/* A string's text, its escapes resolved, as far as there is room; the bytes it would have, and its characters. */
size_t resolve(struct value string, char *to, size_t room, size_t *characters);
/* A value, cut to what fits in a message. */
void put_short(struct text *, struct value);

extern const char NESTED_TOO_DEEPLY[]; /* one of the reasons why */
#endif
