#include <string.h>

#include "internal.h"

static const char *const OPERATIONS[] = {"loop", "help", "hello", "act"};

enum { PARSE_NS_PER_BYTE = 50 };

static void put_status(struct text *t, const struct loop *l)
{
    const struct timing *g = &l->timing;
    put(t, ",\"release\":"), put_string(t, l->options->release, strlen(l->options->release));
    put(t, ",\"loaded\":"), put(t, l->policy->loaded);
    print(t, ",\"timing\":{\"period_ns\":%lld,\"deadline_ns\":%lld,\"stale_ns\":%lld,\"hold_ns\":%lld,",
          (long long)g->period_ns, (long long)g->deadline_ns, (long long)g->stale_ns, (long long)g->hold_ns);
    print(t, "\"spin_ns\":%lld,", (long long)g->spin_ns);
    print(t, "\"pace\":\"%s\",\"on_miss\":\"%s\"},\"granted\":", PACE_NAMES[g->pace], ON_MISS_NAMES[g->on_miss]);
    put_grants(t, &l->grants);
    put(t, ",\"what_grants_it\":"), put_string(t, l->grants.advice, strlen(l->grants.advice));
    print(t, ",\"controller\":%s,\"unread\":%lld,\"malformed\":%lld,\"missed_ever\":%lld,\"counts\":",
          l->connections.controller != NOBODY ? "true" : "false", (long long)l->connections.unread,
          (long long)l->connections.malformed, (long long)l->count.missed_ever);
    put_punctuality(t, &l->count);
}

/* Which operation a request is; LOOP_OPERATION_COUNT where it is refused, and the refusal is in t. */
static int choose_operation(struct text *t, const struct request *r)
{
    static const char *const RESET[] = {"reset", 0}, *const NONE[] = {0};
    int op = 0, is_known = 1, reset;
    while (op < LOOP_OPERATION_COUNT && !is_string(r->op, OPERATIONS[op])) op++;
    if (op == LOOP_OPERATION_COUNT) {
        put(&fault, "op ");
        if (r->op.kind == MISSING) put(&fault, "null");
        else put_short(&fault, r->op);
        put(&fault, " is not answered within a loop; loop, help, hello, act are.");
        refuse(t, r, CODE_UNKNOWN_OP, "Type {\"op\": \"loop\"} for what was counted.");
    } else if (op == LOOP_OPERATION_ACT && member_of(&r->members, "period").kind != MISSING) {
        put(&fault, "act with 'period' is not answered within a loop: what the policy remembers is the controller's.");
        is_known = refuse(t, r, CODE_UNAVAILABLE, "Send a whole observation, or frames as the controller.");
    } else if (op == LOOP_OPERATION_ACT) {
        const struct value rows = member_of(&r->members, "observations"), first = first_element(rows);
        if (first.kind == MISSING || next_element(first, rows).kind == MISSING) return op;
        put(&fault, "act with several observations is not answered within a loop, which a batch would keep from its "
                    "deadlines; one observation is.");
        is_known = refuse(t, r, CODE_UNAVAILABLE,
                          "Send one observation a request, or batches to the agent: run-agent.");
    } else if (op == LOOP_OPERATION_LOOP)
        is_known = check_fields(t, r, RESET) && read_flag(t, r, "reset", 0, &reset);
    else is_known = check_fields(t, r, NONE);
    return is_known ? op : LOOP_OPERATION_COUNT;
}

static void answer(struct loop *l, struct text *t, const struct request *r, int op, struct client *one)
{
    const struct loop_policy *p = l->policy;
    if (op == LOOP_OPERATION_ACT) {
        t->at += p->answer(p->context, one->text, one->size, t->begin, (size_t)(t->end - t->begin));
        return;
    }
    put_head(t, r, 1);
    if (op == LOOP_OPERATION_LOOP) {
        int reset;
        put_status(t, l);
        read_flag(t, r, "reset", 0, &reset);
        if (reset) reset_punctuality(&l->count);
    } else put_char(t, ','), put(t, op == LOOP_OPERATION_HELP ? p->help : p->hello);
    put(t, "}\n");
}

/* Refuse a request for which there was no time, once it has waited long enough; whether it is refused. */
static int give_up(const struct loop *l, const struct client *one, struct text *t, const struct request *r,
                   int64_t until)
{
    const int64_t now = now_ns();
    if (now - one->asked_ns < PATIENCE_NS || now + STEP_NS > until) return 0;
    begin_fault();
    print(&fault, "a period of %.9g ms leaves no time to answer this; missed deadlines: %lld.",
          (double)l->timing.period_ns / 1e6, (long long)l->count.missed_ever);
    refuse(t, r, CODE_UNAVAILABLE, "Try again, or serve the policy at a lower --rate.");
    return 1;
}

/* Answer a request if there is time for it until `until`; whether it is done with. */
static int answer_one(struct loop *l, struct client *one, struct text *t, int64_t until)
{
    static struct request r;
    static const struct request unread;
    int64_t begin = now_ns();
    if (begin + STEP_NS + PARSE_NS_PER_BYTE * (int64_t)one->size > until) return give_up(l, one, t, &unread, until);
    if (!read_request(t, &r, one->text, one->text + one->size)) return 1;
    const int op = choose_operation(t, &r);
    if (op == LOOP_OPERATION_COUNT) return 1;
    int64_t *const cost = &l->cost_ns[op];
    begin = now_ns();
    if (begin + *cost <= until) {
        answer(l, t, &r, op, one);
        const int64_t took = now_ns() - begin;
        *cost = took > *cost - *cost / 8 ? took : *cost - *cost / 8;
        return 1;
    }
    if (begin - l->eased_ns[op] > EASING_NS) /* it may have been interrupted when it took so long */
        *cost -= *cost / 8, l->eased_ns[op] = begin;
    return give_up(l, one, t, &r, until);
}

void answer_waiting(struct loop *l, int64_t until)
{
    struct connections *c = &l->connections;
    for (int turn = 0; turn < PLACES; turn++) {
        const int who = (c->next + turn) % PLACES;
        struct client *one = &c->client[who];
        struct text t = text_of(l->reply, REPLY_ROOM);
        if (one->file == NOBODY || !one->size || !answer_one(l, one, &t, until)) continue;
        one->size = 0;
        if (send_to(c, who, t.begin, text_size(&t)) && is_reserved(who) && who != c->controller) drop(c, who);
    }
    c->next = (c->next + 1) % PLACES;
}

void rehearse_requests(struct loop *l)
{
    struct client one = {.size = 0};
    const struct loop_policy *p = l->policy;
    char *const line = l->connections.client[0].text;
    for (int turn = 0; turn < 2; turn++)
        for (int op = 0; op < LOOP_OPERATION_COUNT; op++) {
            struct text t = text_of(line, l->connections.longest), reply = text_of(l->reply, REPLY_ROOM);
            print(&t, "{\"op\":\"%s\"", OPERATIONS[op]);
            if (op == LOOP_OPERATION_ACT) {
                put(&t, ",\"observation\":");
                for (uint32_t i = 0; i < p->observation_size; i++)
                    put_char(&t, i ? ',' : '['), put_double(&t, (double)p->golden[i]);
                put_char(&t, ']');
            }
            put_char(&t, '}');
            one.text = line, one.size = text_size(&t), one.asked_ns = now_ns();
            line[one.size] = 0;
            answer_one(l, &one, &reply, INT64_MAX);
        }
}
