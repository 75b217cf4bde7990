/* Compares the engine with what another computed, after every layer, on whatever processor this is compiled for. Of the
 * C library there is nothing: it reads a case from the standard input, and writes lines to the standard output.
 *
 * A case, little endian, every part at a multiple of 64 bytes: uint32 {bytes of the artifact, rows, elements of an
 * observation, outputs, stages, elements of each stage ...}, 16 in all; the artifact; float observations[rows][...];
 * int8 levels[rows][...] of stage 0 (the input), 1 (behind the first layer), ...; float outputs[rows][...]; int32
 * choices[rows]; float tolerance[...] of each output: 0 asks for its bits. An artifact of floats has no stages.
 *
 * A line for each set of kernels and each mode: its name, the mode, how many rows differ at each stage, in their
 * outputs, and in their choice. */
#include "engine.h"

enum { ROOM = 48 << 20, MOST_STAGES = 11, LINE = 64 };

static _Alignas(LINE) uint8_t input[ROOM], memory[ROOM];
static int8_t levels[ROOM / 2];
static float outputs[4096];
static char line[4096];
static size_t written;
_Noreturn void start(void);

#if defined __aarch64__
enum { READ = 63, WRITE = 64, EXIT = 93 };
static long call(long number, long a, const void *b, size_t c)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = (long)b, x2 __asm__("x2") = (long)c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}
static const unsigned long *auxiliary;
unsigned long getauxval(unsigned long type)
{
    for (const unsigned long *pair = auxiliary; *pair; pair += 2) if (*pair == type) return pair[1];
    return 0;
}
/* The auxiliary vector lies behind the arguments and the environment, each with a 0 at its end. */
__attribute__((used, noreturn)) void begin(const unsigned long *stack)
{
    for (stack += 2 + *stack; *stack; stack++) {}
    auxiliary = stack + 1;
    start();
}
__asm__(".globl _start\n_start: mov x29, #0\n mov x0, sp\n bl begin\n");
#elif defined __arm__
enum { READ = 3, WRITE = 4, EXIT = 1 };
static long call(long number, long a, const void *b, size_t c)
{
    register long r7 __asm__("r7") = number, r0 __asm__("r0") = a;
    register long r1 __asm__("r1") = (long)b, r2 __asm__("r2") = (long)c;
    __asm__ volatile("svc 0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2) : "memory");
    return r0;
}
__asm__(".globl _start\n_start: mov fp, #0\n bl start\n");
#else
enum { READ = 0, WRITE = 1, EXIT = 60 };
static long call(long number, long a, const void *b, size_t c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call start\n");
#endif

void *memcpy(void *to, const void *from, size_t n)
{
    for (size_t i = 0; i < n; i++) ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
    return to;
}

void *memset(void *to, int value, size_t n)
{
    for (size_t i = 0; i < n; i++) ((uint8_t *)to)[i] = (uint8_t)value;
    return to;
}

int memcmp(const void *a, const void *b, size_t n)
{
    const uint8_t *x = a, *y = b;
    for (size_t i = 0; i < n; i++) if (x[i] != y[i]) return x[i] - y[i];
    return 0;
}

static void say(const char *words)
{
    while (*words && written < sizeof line) line[written++] = *words++;
}

static void say_number(uint32_t x)
{
    char digits[11];
    int at = 10;
    digits[at] = 0;
    do digits[--at] = (char)('0' + x % 10);
    while (x /= 10);
    say(" ");
    say(digits + at);
}

static void flush(void)
{
    for (size_t done = 0; done < written;) {
        const long n = call(WRITE, 1, line + done, written - done);
        if (n <= 0) break;
        done += (size_t)n;
    }
    written = 0;
}

static void leave(const char *words, int status)
{
    say(words);
    flush();
    call(EXIT, status, 0, 0);
    for (;;) {}
}

static size_t whole_lines(size_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

/* One line of what differs; whether anything does. */
static int compare(struct native *engine, const uint32_t *head, const char *kernels, enum native_mode mode)
{
    const uint32_t rows = head[1], elements = head[2], count = head[3], stages = head[4];
    for (unsigned i = 0; i < native_layers(engine); i++) native_set_mode(engine, i, mode);
    const uint8_t *place = input + LINE + whole_lines(head[0]);
    const float *observations = (const float *)place;
    place += whole_lines(4ul * rows * elements);
    int any = 0;
    say(kernels);
    say(mode == NATIVE_DENSE ? " dense" : " sparse");
    for (uint32_t stage = 0; stage < stages; stage++) {
        const size_t size = head[5 + stage];
        uint32_t bad = 0;
        for (uint32_t row = 0; row < rows; row++) {
            const size_t n = native_levels(engine, observations + row * elements, stage, levels, sizeof levels);
            bad += n != size || memcmp(levels, place + row * size, size) != 0;
        }
        say_number(bad);
        any |= bad != 0;
        place += whole_lines(rows * size);
    }
    const float *wanted = (const float *)place;
    const int32_t *choices = (const int32_t *)(place + whole_lines(4ul * rows * count));
    const float *tolerance = (const float *)((const uint8_t *)choices + whole_lines(4ul * rows));
    uint32_t bad = 0, chosen = 0;
    for (uint32_t row = 0; row < rows; row++) {
        chosen += native_decide(engine, observations + row * elements, outputs) != choices[row];
        int differs = 0;
        for (uint32_t i = 0; i < count; i++) {
            const float far = outputs[i] - wanted[row * count + i];
            const int is_near = (far < 0 ? -far : far) <= tolerance[i];
            differs |= !(tolerance[i] > 0 ? is_near : !memcmp(outputs + i, wanted + row * count + i, 4));
        }
        bad += differs != 0;
    }
    say_number(bad);
    say_number(chosen);
    say("\n");
    return any || bad || chosen;
}

__attribute__((used, noreturn)) void start(void)
{
    size_t bytes = 0;
    for (long n = 1; n > 0 && bytes < sizeof input; bytes += n > 0 ? (size_t)n : 0)
        n = call(READ, 0, input + bytes, sizeof input - bytes);
    const uint32_t *head = (const uint32_t *)(void *)input;
    const int fits = head[4] <= MOST_STAGES && head[3] <= sizeof outputs / sizeof *outputs;
    if (bytes < LINE || bytes == sizeof input || head[0] > bytes - LINE || !fits)
        leave("no case\n", 2);
    struct native *engine = (struct native *)(void *)memory;
    const enum native_error error = native_open(memory, sizeof memory, input + LINE, head[0]);
    if (error) leave(native_message(error), 3);
    int any = 0;
    const char *kernels;
    for (unsigned i = 0; (kernels = native_kernels(i)); i++) {
        native_use(engine, kernels);
        any |= compare(engine, head, kernels, NATIVE_DENSE);
        any |= compare(engine, head, kernels, NATIVE_SPARSE);
    }
    leave("", any);
    for (;;) {}
}
