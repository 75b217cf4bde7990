/* Linux without a C library: the exit status is all that comes out. */
int main(void);

#if defined __aarch64__
__asm__(".globl _start\n_start: mov x29, #0\n bl main\n mov x8, #93\n svc #0\n");
#elif defined __arm__
__asm__(".globl _start\n_start: mov fp, #0\n bl main\n mov r7, #1\n svc #0\n");
#else
__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call main\n mov %eax, %edi\n mov $60, %eax\n syscall\n");
#endif
