/* malformed ARTIFACT FIRST COUNT: artifacts made from a valid one by mistakes, numbered from FIRST on, each of them
 * either refused or run. Compiled with the sanitizers of addresses and of undefined behaviour, which end the program.
 * Every piece of memory is exactly as large as the engine may believe, at a multiple of 64 bytes. The valid one has to
 * give the same with every set of kernels, of floats with each of them, and in both modes.
 *
 * Prints how many were refused, and how many ran. */
#define _POSIX_C_SOURCE 200809L
#include "engine.h"
#include "format.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 64, HEAD = 128, LAYER = 128, OBSERVATIONS = 5 };

static uint64_t state;

static uint32_t chance(uint32_t n)      /* 0 ... n - 1 */
{
    state += 0x9e3779b97f4a7c15u;       /* splitmix64 */
    uint64_t z = state;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) >> 16) % n;
}

static void *exactly(size_t bytes)
{
    void *place = 0;
    if (posix_memalign(&place, LINE, bytes ? bytes : 1)) exit(9);
    return place;
}

static void *copied(const void *from, size_t bytes)
{
    void *place = exactly(bytes);
    if (bytes) memcpy(place, from, bytes);
    return place;
}

static uint32_t extreme(uint32_t bytes)
{
    const uint32_t all[] = {
        0, 1, 2, 3, 4, 8, 15, 16, 63, 64, 127, 128, 129, 255, 256, 65535, 65536, 1u << 24, (1u << 24) + 1,
        0x7fffffff, 0x80000000, 0x80000001, 0xffffffff, 0xffffff80, 0xffffff7f, 0xffffffc0, 0x3f800000,
        0x7f800000, 0xff800000, 0x7fc00000, 0xffc00000, 0x7f7fffff, 0xff7fffff,
        bytes, bytes - 1, bytes - 64, bytes - 128, bytes / 64 * 64, HEAD};
    return all[chance(sizeof all / sizeof *all)];
}

/* One mistake; the records are what is hit most, the first twelve bytes seldom. */
static void mistake(uint8_t *file, size_t *size, uint32_t layers)
{
    const uint32_t bytes = (uint32_t)*size, records = HEAD + LAYER * layers;
    const uint32_t inside = bytes < records ? bytes : records;
    if (inside < 16) return;
    const uint32_t from = chance(50) ? 12 : 0, span = (chance(4) ? inside : bytes) - from;
    uint8_t *word = file + from + (span >= 8 ? chance(span / 4 - 1) * 4 : 0);
    uint32_t value;
    memcpy(&value, word, 4);
    switch (chance(9)) {
    case 0: file[from + chance(span)] = (uint8_t)chance(256); return;
    case 1: file[from + chance(span)] ^= (uint8_t)(1u << chance(8)); return;
    case 2: value = extreme(bytes); break;
    case 3: {
        const uint32_t step = (uint32_t[]){1, 2, 3, 4, 16, 64, 128, 256, 65536}[chance(9)];
        value += chance(2) ? step : -step;
        break;
    }
    case 4: value = (bytes - LINE * chance(5)) / LINE * LINE; break; /* an offset at the end */
    case 5:
        *size = chance(3) && bytes >= LINE ? bytes / LINE * LINE - LINE * chance(4) % (bytes / LINE * LINE) : chance(bytes + 1);
        if (*size >= 16 && chance(4)) {
            value = (uint32_t)*size;
            memcpy(file + 12, &value, 4);
        }
        return;
    case 6: {                           /* one record where another was */
        uint8_t other[LAYER], *a = file + HEAD + LAYER * chance(layers), *b = file + HEAD + LAYER * chance(layers);
        if (bytes < records) return;
        memcpy(other, a, LAYER);
        if (chance(2)) memcpy(a, b, LAYER);
        memcpy(b, other, LAYER);
        return;
    }
    case 7: {                           /* two words of a record changed for one another */
        uint8_t *other = file + (word - file) / LAYER * LAYER + chance(LAYER / 4) * 4;
        if (other + 4 > file + bytes || word + 4 > file + bytes) return;
        uint32_t was;
        memcpy(&was, other, 4);
        memcpy(other, &value, 4);
        value = was;
        break;
    }
    default: value = chance(300); break;
    }
    memcpy(word, &value, 4);
}

static void observe(float *observation, uint32_t n, int kind)
{
    const float strange[] = {NAN, INFINITY, -INFINITY, -NAN, 3.4e38f, -3.4e38f, 1e-45f, -0.0f};
    for (uint32_t i = 0; i < n; i++) {
        const float usual = ((float)chance(2001) - 1000.0f) / 200.0f;
        if (kind == 0) observation[i] = usual;
        else if (kind <= 3) observation[i] = strange[kind - 1];
        else observation[i] = chance(2) ? usual : strange[chance(8)];
    }
}

/* Everything that can be asked of an artifact that was accepted. */
static void use(const void *file, size_t bytes, int is_valid)
{
    const struct native_file *f = file;
    const size_t need = native_memory(file, bytes);
    struct native *engine = exactly(need);
    memset(engine, 0xa5, need);
    if (native_open(engine, need - 1, file, bytes) != NATIVE_SMALL_MEMORY) exit(8);
    if (native_open(engine, need, file, bytes) != NATIVE_OK) exit(7);
    const size_t size = sizeof(float) * ((size_t)f->outputs + f->state);
    float *observation = exactly(sizeof(float) * ((size_t)f->observation + f->state)), *outputs = exactly(size), *first = exactly(size);
    for (int kind = 0; kind < OBSERVATIONS; kind++) {
        const char *kernels;
        int begun = 0, chosen = 0;
        observe(observation, f->observation + f->state, kind);
        for (unsigned k = 0; (kernels = native_kernels(k)); k++) {
            if (f->layer[0].bits > 8 || f->layer[0].widened) begun = 0; /* floats are rounded as each set does it */
            for (int mode = 0; mode < 2; mode++) {
                native_use(engine, kernels);
                for (unsigned i = 0; i < native_layers(engine); i++) native_set_mode(engine, i, (enum native_mode)mode);
                const int choice = native_decide(engine, observation, outputs);
                if (choice < 0 || (uint32_t)choice >= f->outputs) exit(6);
                if (!begun) memcpy(first, outputs, size), chosen = choice, begun = 1;
                if (is_valid && (choice != chosen || memcmp(first, outputs, size))) exit(10);
            }
        }
    }
    for (unsigned i = 0; i <= native_layers(engine); i++) {
        const size_t count = native_levels(engine, observation, i, 0, 0);
        int8_t *levels = exactly(count);
        if (native_levels(engine, observation, i, levels, count) != count) exit(5);
        free(levels);
    }
    if (native_levels(engine, observation, native_layers(engine) + 1, 0, 0)) exit(4);
    free(first);
    free(outputs);
    free(observation);
    free(engine);
}

int main(int argc, char **argv)
{
    if (argc != 4) return 3;
    FILE *from = fopen(argv[1], "rb");
    if (!from || fseek(from, 0, SEEK_END)) return 3;
    const size_t bytes = (size_t)ftell(from);
    rewind(from);
    uint8_t *valid = exactly(bytes);
    if (fread(valid, 1, bytes, from) != bytes) return 3;
    fclose(from);
    const uint32_t layers = ((struct native_file *)(void *)valid)->layers;
    if (!native_memory(valid, bytes)) return 2;
    use(valid, bytes, 1);
    uint8_t *shifted = exactly(bytes + LINE / 2);
    memcpy(shifted + LINE / 2, valid, bytes);
    if (native_memory(shifted + LINE / 2, bytes)) return 2; /* its rows would not lie in whole lines */
    free(shifted);
    const unsigned first = (unsigned)strtoul(argv[2], 0, 10), count = (unsigned)strtoul(argv[3], 0, 10);
    unsigned refused = 0, ran = 0;
    for (unsigned number = first; number < first + count; number++) {
        state = number;
        size_t size = bytes;
        uint8_t *made = copied(valid, bytes);
        for (uint32_t mistakes = 1 + chance(2) * chance(3); mistakes; mistakes--) mistake(made, &size, layers);
        uint8_t *file = copied(made, size);
        free(made);
        fprintf(stderr, "\r%u", number); /* what is reported behind it is this one's */
        if (native_memory(file, size)) {
            use(file, size, 0);
            ran++;
        } else {
            uint8_t memory[LINE];
            if (!*native_message(native_open(memory, sizeof memory, file, size))) return 1;
            refused++;
        }
        free(file);
    }
    printf("%u %u\n", refused, ran);
    return 0;
}
