#include "replies.h"

#include <string.h>

enum { MAX_OP = 60 };

static const char TYPE_HELP[] = "Type {\"op\": \"help\"} for examples.";

static char fault_room[4096];
struct text fault;

void begin_fault(void) { fault = text_of(fault_room, sizeof fault_room); }

void put_head(struct text *t, const struct request *r, int is_ok)
{
    put(t, is_ok ? "{\"ok\":true,\"op\":" : "{\"ok\":false,\"op\":");
    if (r->op.kind == STRING) {
        char name[4 * MAX_OP];      /* its first characters: an operation of ours has fewer */
        size_t characters, n = resolve(r->op, name, sizeof name, &characters), count = 0;
        if (n > sizeof name) n = sizeof name;
        for (size_t i = 0; i < n; i++)
            if (((unsigned char)name[i] & 0xc0) != 0x80 && count++ == MAX_OP) n = i;
        put_string(t, name, n);
    } else put(t, "null");
    if (r->id.kind != MISSING) put(t, ",\"id\":"), put_bytes(t, r->id.begin, (size_t)(r->id.end - r->id.begin));
}

int refuse(struct text *t, const struct request *r, const char *code, const char *next)
{
    t->at = t->begin;
    put_head(t, r, 0);
    print(t, ",\"error\":{\"code\":\"%s\",\"message\":", code);
    put_string(t, fault.begin, text_size(&fault));
    put(t, ",\"next\":"), put_string(t, next, strlen(next)), put(t, "}}\n");
    return 0;
}

int refuse_field(struct text *t, const struct request *r, const char *name, struct value v, const char *allowed)
{
    print(&fault, "'%s' is ", name), put_short(&fault, v), print(&fault, "; allowed is %s.", allowed);
    return refuse(t, r, CODE_BAD_FIELD, TYPE_HELP);
}

static int is_allowed_id(struct value id)
{
    size_t characters = (size_t)(id.end - id.begin);
    char none[1];
    if (id.kind == NULL_VALUE) return 1;
    if (id.kind == STRING) return resolve(id, none, 0, &characters), characters <= MAX_ID;
    if (id.kind != NUMBER || characters > MAX_ID) return 0;
    const char *s = id.begin + (*id.begin == '-');
    while (is_digit(s, id.end)) s++;
    return s == id.end && is_digit(s - 1, id.end);
}

int read_request(struct text *t, struct request *r, const char *begin, const char *end)
{
    const char *why = "something follows", *s = skip_blanks(begin, end), *behind;
    struct value value = {OBJECT, s, 0};
    r->op = r->id = (struct value){MISSING, 0, 0};
    begin_fault();
    if (s < end && *s == '{') behind = read_members(s, end, &r->members, &why);
    else value = read_value(s, end, 0, &why), behind = value.end;
    if (!behind && why == NESTED_TOO_DEEPLY) {
        print(&fault, "the line's lists and objects are nested more than %d deep.", MAX_DEPTH);
        return refuse(t, r, CODE_BAD_REQUEST, TYPE_HELP);
    }
    if (!behind || skip_blanks(behind, end) != end) {
        print(&fault, "the line is not valid JSON (%s).", behind ? "something follows" : why);
        return refuse(t, r, CODE_BAD_JSON, "Type one JSON object a line, for example {\"op\": \"help\"}");
    }
    if (value.kind != OBJECT) {
        put(&fault, "the line is "), put_short(&fault, value), put(&fault, "; a request is a JSON object.");
        return refuse(t, r, CODE_BAD_REQUEST, "Type one with an \"op\", for example {\"op\": \"help\"}");
    }
    r->op = member_of(&r->members, "op");
    const struct value id = member_of(&r->members, "id");
    if (id.kind != MISSING && !is_allowed_id(id))
        return refuse_field(t, r, "id", id, "a string or an integer of at most " STRINGIFY(MAX_ID) " characters");
    r->id = id;
    return 1;
}

int check_fields(struct text *t, const struct request *r, const char *const *known)
{
    for (int i = 0; i < r->members.count; i++) {
        const struct member *m = &r->members.member[i];
        int is_known = is_key(m, "op") || is_key(m, "id");
        for (int k = 0; known[k]; k++) is_known |= is_key(m, known[k]);
        if (is_known) continue;
        put_short(&fault, r->op), put(&fault, " has no field ");
        put_bytes(&fault, m->key, m->length < 40 ? m->length : 0), put(&fault, "; its fields are ");
        for (int k = 0; known[k]; k++) print(&fault, "%s%s", k ? ", " : "", known[k]);
        put(&fault, *known ? "." : "none.");
        return refuse(t, r, CODE_UNKNOWN_FIELD, TYPE_HELP);
    }
    return 1;
}

int read_flag(struct text *t, const struct request *r, const char *name, int absent, int *to)
{
    const struct value flag = member_of(&r->members, name);
    *to = flag.kind == MISSING ? absent : flag.kind == TRUE;
    if (flag.kind == MISSING || flag.kind == TRUE || flag.kind == FALSE) return 1;
    return refuse_field(t, r, name, flag, "true or false");
}
