/* Decides a case, laid out as check.c says, with two, three and four threads, over and over: threads begin, fall asleep,
 * are woken and end between decisions. Unlike the engine it has a C library, for its threads alone; no line is written
 * where all outputs are the case's, to the bit, and the alarm ends a program that hangs. */
#include "engine.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROOM = 48 << 20, LINE = 64, ROUNDS = 12, DECISIONS = 40, SECONDS = 100 };

struct helper {
    struct native *leader;
    unsigned number;
};

static _Alignas(LINE) unsigned char input[ROOM];

static size_t whole_lines(size_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

static void *help(void *given)
{
    const struct helper *helper = given;
    native_work(helper->leader, helper->number);
    return 0;
}

static struct native *opened(const uint32_t *head)
{
    const size_t size = whole_lines(native_memory(input + LINE, head[0]));
    void *memory = aligned_alloc(LINE, size + LINE);
    if (!memory || native_open(memory, size, input + LINE, head[0])) exit(3);
    return memory;
}

int main(void)
{
    alarm(SECONDS);
    const size_t bytes = fread(input, 1, sizeof input, stdin);
    const uint32_t *head = (const uint32_t *)(const void *)input;
    const uint32_t rows = head[1], elements = head[2], count = head[3], stages = head[4];
    const unsigned char *place = input + LINE + whole_lines(head[0]);
    const float *observations = (const float *)(const void *)place;
    place += whole_lines(4ul * rows * elements);
    for (uint32_t stage = 0; stage < stages; stage++) place += whole_lines((size_t)rows * head[5 + stage]);
    const float *wanted = (const float *)(const void *)place;
    const int32_t *choices = (const int32_t *)(const void *)(place + whole_lines(4ul * rows * count));
    float *outputs = malloc(4ul * count);
    if (bytes < LINE || bytes == sizeof input || !outputs) return 2;
    int bad = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        const unsigned threads = 2 + round % (NATIVE_THREADS - 1);
        struct native *leader = opened(head), *others[NATIVE_THREADS - 1];
        for (unsigned t = 1; t < threads; t++) others[t - 1] = opened(head);
        if (!native_team(leader, others, threads)) return 4;
        pthread_t thread[NATIVE_THREADS];
        struct helper helpers[NATIVE_THREADS];
        for (unsigned t = 1; t < threads; t++) {
            helpers[t] = (struct helper){leader, t};
            if (pthread_create(&thread[t], 0, help, &helpers[t])) return 5;
        }
        for (unsigned i = 0; i < DECISIONS; i++) {
            const uint32_t row = (round + i) % rows;
            if (i % 16 == 15) usleep(3000); /* long enough for them to fall asleep */
            if (i == 30 && round % 4 == 3) native_stop(leader);
            bad += native_decide(leader, observations + row * elements, outputs) != choices[row];
            bad += memcmp(outputs, wanted + row * count, 4ul * count) != 0;
        }
        native_stop(leader);
        for (unsigned t = 1; t < threads; t++) pthread_join(thread[t], 0);
        for (unsigned t = 1; t < threads; t++) free(others[t - 1]);
        free(leader);
    }
    if (bad) printf("%d decisions differ\n", bad);
    return bad != 0;
}
