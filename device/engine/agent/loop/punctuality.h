/* How punctual the loop is: times in ns and counts since it began, or since they were read with a reset. What each of
 * them means stands in device/agent/loop/punctuality.py. */
#ifndef AGENT_LOOP_PUNCTUALITY_H
#define AGENT_LOOP_PUNCTUALITY_H
#include "../system.h"
#include "frames.h"
#include "histogram.h"

struct punctuality {
    struct histogram time[TIME_COUNT];
    int64_t ticks, skipped, late, hold_expired, missed_ever;
    uint64_t since_ns, flags[256];  /* how many actions had them */
    long usage[18];                 /* struct rusage: 64 bits each, or 32 on armv7l */
};
enum { USER_S, USER_US, SYSTEM_S, SYSTEM_US, MINOR = 8, MAJOR, VOLUNTARY = 16, INVOLUNTARY };

static void reset_punctuality(struct punctuality *p)
{
    for (int i = 0; i < TIME_COUNT; i++) clear_histogram(&p->time[i]);
    for (int i = 0; i < 256; i++) if (p->flags[i]) p->flags[i] = 0;
    p->ticks = p->skipped = p->late = p->hold_expired = 0;
    p->since_ns = now_ns();
    call(GETRUSAGE, 0, (long)p->usage, 0, 0, 0, 0);
}

static void count_missed(struct punctuality *p, int64_t late, int64_t skipped)
{
    p->late += late, p->skipped += skipped, p->missed_ever += late + skipped;
}

static void put_count(struct text *t, const char *key, int64_t n) { put(t, key), put_signed(t, n); }

static void put_punctuality(struct text *t, const struct punctuality *p)
{
    const int64_t due = p->ticks + p->skipped, lost = p->late + p->skipped;
    long used[18] = {0};
    call(GETRUSAGE, 0, (long)used, 0, 0, 0, 0);
    for (int i = 0; i < 18; i++) used[i] -= p->usage[i];
    put(t, "{\"seconds\":"), put_double(t, (double)(now_ns() - p->since_ns) / 1e9);
    put_count(t, ",\"ticks\":", p->ticks), put_count(t, ",\"skipped\":", p->skipped);
    put_count(t, ",\"late\":", p->late);
    put(t, ",\"missed_per_million\":");
    if (due) put_double(t, (double)lost * 1e6 / (double)due);
    else put(t, "null");
    for (int i = 0; i < COUNT_OF(COUNTED); i++) {
        uint64_t n = 0;
        for (unsigned flags = 0; flags < 256; flags++) if (flags & (unsigned)COUNTED[i].bit) n += p->flags[flags];
        put(t, ",\""), put(t, COUNTED[i].name), put(t, "\":"), put_unsigned(t, n);
    }
    put_count(t, ",\"hold_expired\":", p->hold_expired);
    for (int i = 0; i < TIME_COUNT; i++)
        put(t, ",\""), put(t, TIME_NAMES[i]), put(t, "_ns\":"), put_histogram(t, &p->time[i]);
    put_count(t, ",\"page_faults\":{\"minor\":", used[MINOR]), put_count(t, ",\"major\":", used[MAJOR]);
    put_count(t, "},\"context_switches\":{\"voluntary\":", used[VOLUNTARY]);
    put_count(t, ",\"involuntary\":", used[INVOLUNTARY]);
    put(t, "},\"cpu_s\":");
    put_double(t, (double)(used[USER_S] + used[SYSTEM_S]) + (double)(used[USER_US] + used[SYSTEM_US]) / 1e6);
    put_char(t, '}');
}
#endif
