#include "json.h"

#include <string.h>

#include "constants.h"
#include "number.h"

const char NESTED_TOO_DEEPLY[] = "it is nested too deeply";
static const char NO_END[] = "a list or an object does not end";

int hex_digit(char c)
{
    const char letter = (char)(c | 32);
    return c >= '0' && c <= '9' ? c - '0' : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

static const char *skip_digits(const char *s)
{
    unsigned count;
    do s += count = count_digits(eight_digits(s)); while (count == 8);
    return s;
}

static const char *skip_word(const char *s, const char *end, const char *word)
{
    const size_t n = strlen(word);
    return (size_t)(end - s) >= n && !memcmp(s, word, n) ? s + n : 0;
}

const char *skip_utf8(const char *s, const char *end)
{
    const unsigned char c = (unsigned char)*s;
    int more = -1;
    if (c < 0x80) return s + 1;
    if (c >= 0xc2 && c < 0xe0) more = 1;
    else if (c >= 0xe0 && c < 0xf0) more = 2;
    else if (c >= 0xf0 && c < 0xf5) more = 3;
    if (more < 0 || end - s <= more) return 0;
    const unsigned char d = (unsigned char)s[1];
    if ((c == 0xe0 && d < 0xa0) || (c == 0xed && d >= 0xa0)) return 0;
    if ((c == 0xf0 && d < 0x90) || (c == 0xf4 && d >= 0x90)) return 0;
    for (int i = 1; i <= more; i++) if (((unsigned char)s[i] & 0xc0) != 0x80) return 0;
    return s + 1 + more;
}

static const char *skip_string(const char *s, const char *end)
{
    for (s++; s < end && *s != '"';) {
        if ((unsigned char)*s < 32) return 0;
        if (*s != '\\') {
            if (!(s = skip_utf8(s, end))) return 0;
            continue;
        }
        if (++s >= end) return 0;
        if (*s == 'u') {
            for (int i = 1; i <= 4; i++) if (s + i >= end || hex_digit(s[i]) < 0) return 0;
            s += 5;
        } else if (*s && strchr("\"\\/bfnrt", *s)) s++;
        else return 0;
    }
    return s < end ? s + 1 : 0;
}

static const char *skip_number(const char *s, const char *end)
{
    static const char *const WORDS[] = {"NaN", "Infinity", "-Infinity"};
    const char *const begin = s;
    if (s < end && *s == '-') s++;
    if (!is_digit(s, end)) {
        const char *found = 0;
        for (int i = 0; i < COUNT_OF(WORDS) && !found; i++) found = skip_word(begin, end, WORDS[i]);
        return found;
    }
    if (*s == '0') s++;
    else while (is_digit(s, end)) s++; /* few, as a rule */
    if (s < end && *s == '.' && is_digit(s + 1, end)) s = skip_digits(s + 1);
    if (s < end && (*s | 32) == 'e') {
        const char *e = s + 1;
        if (e < end && (*e == '+' || *e == '-')) e++;
        if (is_digit(e, end)) s = skip_digits(e);
    }
    return s;
}

static enum kind kind_of(char c)
{
    switch (c) {
    case '"': return STRING;
    case '[': return LIST;
    case '{': return OBJECT;
    case 't': return TRUE;
    case 'f': return FALSE;
    case 'n': return NULL_VALUE;
    default: return NUMBER;
    }
}

static const char *skip_value(const char *s, const char *end, int depth, const char **why);

/* An object's key and the colon behind it. */
static const char *skip_key(const char *s, const char *end, const char **why)
{
    *why = "an object's key is not a string";
    if (s >= end || *s != '"' || !(s = skip_string(s, end))) return 0;
    s = skip_blanks(s, end);
    *why = "a ':' is missing after a key";
    return s < end && *s == ':' ? skip_blanks(s + 1, end) : 0;
}

static const char *skip_elements(const char *s, const char *end, int depth, const char **why)
{
    const char close = *s == '[' ? ']' : '}';
    *why = NESTED_TOO_DEEPLY;
    if (depth >= MAX_DEPTH) return 0;
    s = skip_blanks(s + 1, end);
    if (s < end && *s == close) return s + 1;
    for (;;) {
        if (close == '}' && !(s = skip_key(s, end, why))) return 0;
        if (!(s = skip_value(s, end, depth + 1, why))) return 0;
        s = skip_blanks(s, end);
        if (s < end && *s == close) return s + 1;
        *why = NO_END;
        if (s >= end || *s != ',') return 0;
        s = skip_blanks(s + 1, end);
    }
}

static const char *skip_value(const char *s, const char *end, int depth, const char **why)
{
    *why = "a value is missing";
    if (s >= end) return 0;
    switch (*s) {
    case '"':
        *why = "a string does not end, or has a character that it must not have";
        return skip_string(s, end);
    case '[':
    case '{': return skip_elements(s, end, depth, why);
    case 't': return skip_word(s, end, "true");
    case 'f': return skip_word(s, end, "false");
    case 'n': return skip_word(s, end, "null");
    default: return skip_number(s, end);
    }
}

struct value read_value(const char *s, const char *end, int depth, const char **why)
{
    const char *const behind = skip_value(s, end, depth, why);
    return (struct value){behind ? kind_of(*s) : MISSING, s, behind};
}

static struct value element_at(const char *s, struct value list)
{
    const char *why;
    if (list.kind != LIST || *s == ']') return (struct value){MISSING, 0, 0};
    return read_value(s, list.end, 0, &why);
}

struct value first_element(struct value list)
{
    return element_at(list.kind == LIST ? skip_blanks(list.begin + 1, list.end) : 0, list);
}

struct value next_element(struct value at, struct value list)
{
    const char *const s = skip_blanks(at.end, list.end);
    return element_at(*s == ',' ? skip_blanks(s + 1, list.end) : s, list);
}

/* The character of an escape \uXXXX whose digits begin at *s, and of a second one where both are a pair; *s then stands
 * at the last digit. */
static unsigned read_escape(const char **s, const char *end)
{
    unsigned code = 0, low = 0;
    for (int k = 0; k < 4; k++) code = code << 4 | (unsigned)hex_digit((*s)[k]);
    *s += 3;
    if (code < 0xd800 || code >= 0xdc00 || end - *s < 8 || (*s)[1] != '\\' || (*s)[2] != 'u') return code;
    for (int k = 3; k < 7; k++) low = low << 4 | (unsigned)hex_digit((*s)[k]);
    if (low < 0xdc00 || low >= 0xe000) return code;
    *s += 6;
    return 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
}

/* A code point as UTF-8; half a surrogate pair in the three bytes that it would have. */
static int encode_utf8(unsigned code, char bytes[4])
{
    if (code < 0x80) return bytes[0] = (char)code, 1;
    const int count = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (int i = count - 1; i > 0; i--, code >>= 6) bytes[i] = (char)(0x80 | (code & 63));
    bytes[0] = (char)(0xf00 >> count | code);
    return count;
}

size_t resolve(struct value string, char *to, size_t room, size_t *characters)
{
    static const char LETTERS[] = "bfnrt", MEANINGS[] = "\b\f\n\r\t";
    size_t n = 0;
    *characters = 0;
    for (const char *s = string.begin + 1; s < string.end - 1; s++) {
        char bytes[4] = {*s};
        int count = 1;
        if (*s == '\\') {
            const char *const letter = strchr(LETTERS, *++s);
            bytes[0] = letter ? MEANINGS[letter - LETTERS] : *s;
            if (*s == 'u') s++, count = encode_utf8(read_escape(&s, string.end), bytes);
        }
        *characters += ((unsigned char)bytes[0] & 0xc0) != 0x80;
        for (int i = 0; i < count; i++, n++) if (n < room) to[n] = bytes[i];
    }
    return n;
}

const char *read_members(const char *s, const char *end, struct object *to, const char **why)
{
    to->count = 0;
    s = skip_blanks(s + 1, end);
    if (s < end && *s == '}') return s + 1;
    for (;;) {
        char key[MAX_KEY];
        size_t characters;
        const char *const begin = s;
        if (!(s = skip_key(s, end, why))) return 0;
        const struct value name = {STRING, begin, skip_string(begin, end)};
        const size_t length = resolve(name, key, MAX_KEY, &characters);
        const struct value value = read_value(s, end, 1, why);
        if (value.kind == MISSING) return 0;
        int i = 0;
        for (; i < to->count; i++)
            if (length <= MAX_KEY && to->member[i].length == length && !memcmp(to->member[i].key, key, length)) break;
        if (i == MAX_MEMBERS) i -= equals("op", key, length) ? 1 : equals("id", key, length) ? 2 : 3;
        to->member[i].length = length, to->member[i].value = value;
        memcpy(to->member[i].key, key, length < MAX_KEY ? length : MAX_KEY);
        if (i == to->count) to->count++;
        s = skip_blanks(value.end, end);
        if (s < end && *s == '}') return s + 1;
        *why = NO_END;
        if (s >= end || *s != ',') return 0;
        s = skip_blanks(s + 1, end);
    }
}

int equals(const char *word, const char *s, size_t n)
{
    for (; n; n--, word++, s++) if (!*word || *word != *s) return 0;
    return !*word;
}

int is_key(const struct member *m, const char *word) { return m->length <= MAX_KEY && equals(word, m->key, m->length); }

struct value member_of(const struct object *o, const char *key)
{
    for (int i = 0; i < o->count; i++) if (is_key(&o->member[i], key)) return o->member[i].value;
    return (struct value){MISSING, 0, 0};
}

int is_string(struct value v, const char *word)
{
    char text[MAX_KEY];
    size_t characters;
    if (v.kind != STRING) return 0;
    if (v.begin[1] != *word && v.begin[1] != '\\') return 0;
    const size_t size = (size_t)(v.end - v.begin) - 2;
    if (!memchr(v.begin, '\\', size + 2)) return equals(word, v.begin + 1, size);
    const size_t n = resolve(v, text, sizeof text, &characters);
    return n <= sizeof text && equals(word, text, n);
}

int is_one_of(struct value v, const char *const *words)
{
    while (*words && !is_string(v, *words)) words++;
    return *words != 0;
}

void put_short(struct text *t, struct value v)
{
    size_t n = v.kind == MISSING ? 0 : (size_t)(v.end - v.begin);
    const int is_cut = n > 60;
    if (is_cut) for (n = 57; n && ((unsigned char)v.begin[n] & 0xc0) == 0x80;) n--;
    put_bytes(t, v.begin, n);
    if (is_cut) put(t, "...");
}
