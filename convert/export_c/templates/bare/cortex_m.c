/* A Cortex-M4F or -M7F from reset: the coprocessor on, the memory as C expects it, main, and its exit status to whoever
 * emulates the board (semihosting). For a board of your own take its maker's start-up code instead. */
#include <stdint.h>

int main(void);
extern uint32_t data_begin[], data_end[], data_stored[], bss_begin[], bss_end[], stack_top[];

/* SYS_EXIT_EXTENDED, for a reason of ADP_Stopped_ApplicationExit. */
static void leave(int status)
{
    uint32_t block[2] = {0x20026, (uint32_t)status};
    register uint32_t operation __asm__("r0") = 0x20;
    register uint32_t *argument __asm__("r1") = block;
    __asm__ volatile("bkpt 0xab" : "+r"(operation) : "r"(argument) : "memory");
    for (;;) __asm__ volatile("wfi");
}

void _start(void)
{
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* CPACR: floating point for everybody */
    __asm__ volatile("dsb\n isb" ::: "memory");
    for (uint32_t *to = data_begin, *from = data_stored; to < data_end;) *to++ = *from++;
    for (uint32_t *to = bss_begin; to < bss_end;) *to++ = 0;
    leave(main());
}

static void fault(void) { leave(3); }

__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_top, (const void *)_start, (const void *)fault, (const void *)fault,
    (const void *)fault, (const void *)fault, (const void *)fault,
};
