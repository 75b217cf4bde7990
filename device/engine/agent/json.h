/* One line of JSON: its form is checked as a whole, and with it the members of its object are found. Nothing is
 * allocated; values stay where they are in the line, behind which one byte may be read, and is no digit. As Python reads
 * it, NaN and Infinity are numbers, too. */
#ifndef AGENT_JSON_H
#define AGENT_JSON_H
#include "constants.h"
#include "number.h"
#include "text.h"

enum { MOST_MEMBERS = 32, MOST_KEY = 64 };
enum kind { NOTHING, WORD, NUMBER, LIST, OBJECT, TRUE, FALSE, NULL_VALUE };

struct value { enum kind kind; const char *begin, *end; };
struct member { char key[MOST_KEY]; size_t length; struct value value; };
struct object { struct member member[MOST_MEMBERS]; int count; };

static const char *blank(const char *s, const char *end)
{
    while (s < end && (*s == ' ' || *s == '\t' || *s == '\n' || *s == '\r')) s++;
    return s;
}

static int is_digit(const char *s, const char *end) { return s < end && (unsigned)*s - '0' < 10; }

static const char *behind_digits(const char *s)
{
    while ((unsigned)*s - '0' < 10) s++;
    return s;
}

static const char *literal(const char *s, const char *end, const char *word)
{
    while (*word && s < end && *s == *word) s++, word++;
    return *word ? 0 : s;
}

static int hex(char c) { return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1; }

/* Behind a sign of UTF-8, or NULL where it is none: no overlong form, no surrogate, nothing beyond U+10FFFF. */
static const char *sign_of_utf8(const char *s, const char *end)
{
    const unsigned char c = (unsigned char)*s;
    const int more = c < 0x80 ? 0 : c >= 0xc2 && c < 0xe0 ? 1 : c >= 0xe0 && c < 0xf0 ? 2 : c >= 0xf0 && c < 0xf5 ? 3 : -1;
    if (more < 0 || end - s <= more) return 0;
    const unsigned char d = more ? (unsigned char)s[1] : 0;
    if ((c == 0xe0 && d < 0xa0) || (c == 0xed && d >= 0xa0) || (c == 0xf0 && d < 0x90) || (c == 0xf4 && d >= 0x90)) return 0;
    for (int i = 1; i <= more; i++) if (((unsigned char)s[i] & 0xc0) != 0x80) return 0;
    return s + 1 + more;
}

/* Behind a word that begins at s, with its closing quote; NULL where it is none. */
static const char *behind_word(const char *s, const char *end)
{
    for (s++; s < end && *s != '"';) {
        if ((unsigned char)*s < 32) return 0;
        if (*s != '\\') {
            if (!(s = sign_of_utf8(s, end))) return 0;
            continue;
        }
        if (++s >= end) return 0;
        if (*s == 'u') {
            for (int i = 1; i <= 4; i++) if (s + i >= end || hex(s[i]) < 0) return 0;
            s += 5;
        } else {
            const char *known = "\"\\/bfnrt";
            while (*known && *known != *s) known++;
            if (!*known) return 0;
            s++;
        }
    }
    return s < end ? s + 1 : 0;
}

static const char *behind_number(const char *s, const char *end)
{
    const char *found;
    if (s < end && (*s == 'N' || *s == 'I' || *s == '-') && ((found = literal(s, end, "NaN")) || (found = literal(s, end, "Infinity")) || (found = literal(s, end, "-Infinity")))) return found;
    if (s < end && *s == '-') s++;
    if (!is_digit(s, end)) return 0;
    s = *s == '0' ? s + 1 : behind_digits(s);
    if (s < end && *s == '.' && is_digit(s + 1, end)) s = behind_digits(s + 1);
    if (s < end && (*s | 32) == 'e') {
        const char *e = s + 1;
        if (e < end && (*e == '+' || *e == '-')) e++;
        if (is_digit(e, end)) s = behind_digits(e);
    }
    return s;
}

/* Where a value that begins at s ends, or NULL; *why says what is wrong. */
static const char *behind_value(const char *s, const char *end, int depth, const char **why)
{
    *why = "no value is where one must be";
    if (s >= end) return 0;
    if (*s == '"') {
        *why = "a word does not end, or has a sign that it must not have";
        return behind_word(s, end);
    }
    if (*s != '[' && *s != '{') {
        const char *found;
        if (is_digit(s, end)) return behind_number(s, end);
        if ((found = literal(s, end, "true")) || (found = literal(s, end, "false")) || (found = literal(s, end, "null"))) return found;
        return behind_number(s, end);
    }
    if (depth >= MAX_DEPTH) {
        *why = "it is nested too deeply";
        return 0;
    }
    const char close = *s == '[' ? ']' : '}';
    s = blank(s + 1, end);
    if (s < end && *s == close) return s + 1;
    for (;;) {
        if (close == '}') {
            *why = "an object's key is no word";
            if (s >= end || *s != '"' || !(s = behind_word(s, end))) return 0;
            s = blank(s, end);
            *why = "there is no ':' behind a key";
            if (s >= end || *s++ != ':') return 0;
            s = blank(s, end);
        }
        if (!(s = behind_value(s, end, depth + 1, why))) return 0;
        s = blank(s, end);
        *why = "a list or an object does not end";
        if (s < end && *s == close) return s + 1;
        if (s >= end || *s != ',') return 0;
        s = blank(s + 1, end);
    }
}

static enum kind kind_of(char c)
{
    return c == '"' ? WORD : c == '[' ? LIST : c == '{' ? OBJECT : c == 't' ? TRUE : c == 'f' ? FALSE : c == 'n' ? NULL_VALUE : NUMBER;
}

/* A word's text, its escapes resolved, as far as there is room; the bytes it would have. */
static size_t resolved(struct value word, char *to, size_t room)
{
    size_t n = 0;
    for (const char *s = word.begin + 1; s < word.end - 1; s++) {
        char bytes[4] = {*s};
        int count = 1;
        if (*s == '\\') {
            static const char from[] = "bfnrt", is[] = "\b\f\n\r\t";
            int i = 0;
            s++;
            while (from[i] && from[i] != *s) i++;
            bytes[0] = from[i] ? is[i] : *s;
            if (*s == 'u') {
                unsigned code = 0;
                for (int k = 1; k <= 4; k++) code = code << 4 | (unsigned)hex(s[k]);
                s += 4;
                if (code < 0x80) bytes[0] = (char)code;
                else if (code < 0x800) bytes[0] = (char)(0xc0 | code >> 6), bytes[1] = (char)(0x80 | (code & 63)), count = 2;
                else if (code >= 0xd800 && code < 0xe000) bytes[0] = '?'; /* half a sign: no key and no word of ours has one */
                else bytes[0] = (char)(0xe0 | code >> 12), bytes[1] = (char)(0x80 | (code >> 6 & 63)), bytes[2] = (char)(0x80 | (code & 63)), count = 3;
            }
        }
        for (int i = 0; i < count; i++, n++) if (n < room) to[n] = bytes[i];
    }
    return n;
}

/* Where an object that begins at s ends, or NULL, as behind_value; and its members: of a key that stands twice, the last.
 * Those beyond MOST_MEMBERS are left out, but the last place keeps one of them: so many keys are never all known. */
static const char *behind_members(const char *s, const char *end, struct object *to, const char **why)
{
    to->count = 0;
    s = blank(s + 1, end);
    if (s < end && *s == '}') return s + 1;
    for (;;) {
        struct member m;
        const char *const key = s;
        *why = "an object's key is no word";
        if (s >= end || *s != '"' || !(s = behind_word(s, end))) return 0;
        m.length = resolved((struct value){WORD, key, s}, m.key, MOST_KEY);
        s = blank(s, end);
        *why = "there is no ':' behind a key";
        if (s >= end || *s++ != ':') return 0;
        s = blank(s, end);
        m.value.begin = s;
        if (!(s = behind_value(s, end, 1, why))) return 0;
        m.value.kind = kind_of(*m.value.begin), m.value.end = s;
        int i = 0;
        while (i < to->count && !(to->member[i].length == m.length && m.length <= MOST_KEY && !__builtin_memcmp(to->member[i].key, m.key, m.length))) i++;
        if (i == MOST_MEMBERS) i--;
        to->member[i].length = m.length, to->member[i].value = m.value;
        for (size_t k = 0; k < m.length && k < MOST_KEY; k++) to->member[i].key[k] = m.key[k];
        if (i == to->count) to->count++;
        s = blank(s, end);
        *why = "a list or an object does not end";
        if (s < end && *s == '}') return s + 1;
        if (s >= end || *s != ',') return 0;
        s = blank(s + 1, end);
    }
}

static int equals(const char *word, const char *s, size_t n)
{
    while (n && *word && *word == *s) word++, s++, n--;
    return !n && !*word;
}

static int is_key(const struct member *m, const char *word) { return m->length <= MOST_KEY && equals(word, m->key, m->length); }

static struct value member_of(const struct object *o, const char *key)
{
    for (int i = 0; i < o->count; i++) if (is_key(&o->member[i], key)) return o->member[i].value;
    return (struct value){NOTHING, 0, 0};
}

static int is_word(struct value v, const char *word)
{
    char text[MOST_KEY];
    const size_t n = v.kind == WORD ? resolved(v, text, sizeof text) : sizeof text + 1;
    return n <= sizeof text && equals(word, text, n);
}

static int is_one_of(struct value v, const char *const *words)
{
    while (*words && !is_word(v, *words)) words++;
    return *words != 0;
}

/* A value, cut to what fits in a message. */
static void put_short(struct text *t, struct value v)
{
    size_t n = v.kind == NOTHING ? 0 : (size_t)(v.end - v.begin);
    const int cut = n > 60;
    if (cut) for (n = 57; n && ((unsigned char)v.begin[n] & 0xc0) == 0x80;) n--;
    put_bytes(t, v.begin, n);
    if (cut) put(t, "...");
}
#endif
