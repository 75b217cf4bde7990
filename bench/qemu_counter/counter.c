/* QEMU plugin: instructions, loads, stores and modelled cache misses of an AArch64 program between two instructions.
 *
 *     hint #0x60   begins to count      hint #0x61   ends it and writes a line
 *     hint #0x62   empties the caches
 *
 * To every Armv8 core these are no-ops (Arm DDI 0487, "HINT": unallocated numbers behave as NOP). Counted is the
 * thread that executed the first marker, and it alone; neither marker counts. A load or store is an instruction that
 * reads or writes memory, however many registers it moves. Once the first marker was seen the caches follow that
 * thread also between the markers, so that what is there is what the program left there.
 *
 * So that a second run is the same to the digit, the first thread's clocks start at a fixed time and go on by TICK_NS
 * whenever they are read, and its random bytes are always the same. That needs guest addresses to be addresses of
 * this process: start qemu-aarch64 with -B 0.
 *
 * Each line of the file that out= names: instructions loads stores load_bytes store_bytes
 * l1i_misses l1d_misses l2_instruction_misses l2_data_misses l2_random_misses.
 *
 * Debian ships no qemu-plugin.h; what is used of version 1 of the interface (QEMU 4.2 to 8.1) is declared here.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "cache.h"

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
typedef struct qemu_info_t {
    const char *target_name;
    struct { int min, cur; } version;
    bool system_emulation;
    union { struct { int smp_vcpus, max_vcpus; } system; };
} qemu_info_t;
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
enum qemu_plugin_mem_rw { QEMU_PLUGIN_MEM_RW = 3 };

typedef void (*vcpu_udata_cb)(unsigned vcpu, void *data);
typedef void (*vcpu_mem_cb)(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t address, void *data);

extern void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t,
                                                  void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
extern void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
extern struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
extern uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, vcpu_udata_cb,
                                                   enum qemu_plugin_cb_flags, void *);
extern void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn *, vcpu_mem_cb, enum qemu_plugin_cb_flags,
                                             enum qemu_plugin_mem_rw, void *);
extern void qemu_plugin_register_vcpu_syscall_cb(qemu_plugin_id_t,
                                                 void (*)(qemu_plugin_id_t, unsigned vcpu, int64_t number, uint64_t,
                                                          uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                                                          uint64_t));
extern void qemu_plugin_register_vcpu_syscall_ret_cb(qemu_plugin_id_t, void (*)(qemu_plugin_id_t, unsigned vcpu,
                                                                                int64_t number, int64_t result));
extern unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t);
extern bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t);

EXPORT int qemu_plugin_version = 1;

#define HINT(number) (0xd503201fu | (number) << 5)
#define NOBODY (~0u)

#define FIRST_THREAD 0u
enum { CLOCK_GETTIME = 113, GETRANDOM = 278 }; /* system calls of AArch64 Linux */
#define START_NS 1700000000000000000 /* 14 November 2023 */
#define TICK_NS 100003               /* as many digits as a real reading has */

static FILE *out;
static struct core core;
static unsigned counted = NOBODY; /* the thread */
static bool counting;
static bool loaded, stored; /* the instruction that is being executed already counts as a load, as a store */
static struct { uint64_t instructions, loads, stores, load_bytes, store_bytes; } sum;
static struct core before;

static void begin(unsigned vcpu, void *data)
{
    (void)data;
    if (counted == NOBODY)
        counted = vcpu;
    if (vcpu != counted)
        return;
    counting = true;
    memset(&sum, 0, sizeof sum);
    before.l1i_misses = core.l1i_misses;
    before.l1d_misses = core.l1d_misses;
    before.l2_instruction_misses = core.l2_instruction_misses;
    before.l2_data_misses = core.l2_data_misses;
    before.l2_random_misses = core.l2_random_misses;
}

static void end(unsigned vcpu, void *data)
{
    (void)data;
    if (vcpu != counted || !counting)
        return;
    counting = false;
    fprintf(out, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " ", sum.instructions, sum.loads, sum.stores,
            sum.load_bytes, sum.store_bytes);
    fprintf(out, "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", core.l1i_misses - before.l1i_misses,
            core.l1d_misses - before.l1d_misses, core.l2_instruction_misses - before.l2_instruction_misses,
            core.l2_data_misses - before.l2_data_misses, core.l2_random_misses - before.l2_random_misses);
}

static void empty(unsigned vcpu, void *data)
{
    (void)data;
    if (vcpu == counted)
        core_empty(&core);
}

static void on_instruction(unsigned vcpu, void *data)
{
    if (vcpu != counted)
        return;
    core_fetch(&core, (uintptr_t)data);
    loaded = stored = false;
    sum.instructions++;
}

static void on_access(unsigned vcpu, qemu_plugin_meminfo_t info, uint64_t address, void *data)
{
    (void)data;
    if (vcpu != counted)
        return;
    const uint64_t bytes = 1u << qemu_plugin_mem_size_shift(info);
    core_access(&core, address, bytes);
    if (qemu_plugin_mem_is_store(info)) {
        sum.stores += !stored;
        stored = true;
        sum.store_bytes += bytes;
    } else {
        sum.loads += !loaded;
        loaded = true;
        sum.load_bytes += bytes;
    }
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *block)
{
    (void)id;
    const size_t count = qemu_plugin_tb_n_insns(block);
    for (size_t index = 0; index < count; index++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(block, index);
        const uint8_t *code = qemu_plugin_insn_data(insn);
        const uint32_t word = code[0] | code[1] << 8 | code[2] << 16 | (uint32_t)code[3] << 24;
        if (word == HINT(0x60u))
            qemu_plugin_register_vcpu_insn_exec_cb(insn, begin, QEMU_PLUGIN_CB_NO_REGS, NULL);
        else if (word == HINT(0x61u))
            qemu_plugin_register_vcpu_insn_exec_cb(insn, end, QEMU_PLUGIN_CB_NO_REGS, NULL);
        else if (word == HINT(0x62u))
            qemu_plugin_register_vcpu_insn_exec_cb(insn, empty, QEMU_PLUGIN_CB_NO_REGS, NULL);
        else {
            void *address = (void *)(uintptr_t)qemu_plugin_insn_vaddr(insn);
            qemu_plugin_register_vcpu_insn_exec_cb(insn, on_instruction, QEMU_PLUGIN_CB_NO_REGS, address);
            qemu_plugin_register_vcpu_mem_cb(insn, on_access, QEMU_PLUGIN_CB_NO_REGS, QEMU_PLUGIN_MEM_RW, NULL);
        }
    }
}

static uint64_t call_arguments[2];

static void on_system_call(qemu_plugin_id_t id, unsigned vcpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                   uint64_t e, uint64_t f, uint64_t g, uint64_t h)
{
    (void)id, (void)number, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    if (vcpu == FIRST_THREAD) {
        call_arguments[0] = a;
        call_arguments[1] = b;
    }
}

static void on_system_return(qemu_plugin_id_t id, unsigned vcpu, int64_t number, int64_t result)
{
    (void)id;
    static int64_t now = START_NS;
    if (vcpu != FIRST_THREAD || result < 0)
        return;
    if (number == CLOCK_GETTIME) {
        int64_t *time = (int64_t *)(uintptr_t)call_arguments[1];
        now += TICK_NS;
        time[0] = now / 1000000000;
        time[1] = now % 1000000000;
    } else if (number == GETRANDOM) {
        uint8_t *bytes = (uint8_t *)(uintptr_t)call_arguments[0];
        for (int64_t index = 0; index < result; index++)
            bytes[index] = (uint8_t)(index * 73 + 41);
    }
}

static void on_exit_of_process(qemu_plugin_id_t id, void *data)
{
    (void)id;
    (void)data;
    fclose(out);
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    if (strcmp(info->target_name, "aarch64") != 0) {
        fprintf(stderr, "counter: the program is for %s; it must be for aarch64\n", info->target_name);
        return -1;
    }
    for (int index = 0; index < argc; index++)
        if (strncmp(argv[index], "out=", 4) == 0)
            out = fopen(argv[index] + 4, "w");
    if (out == NULL) {
        fprintf(stderr, "counter: no out=FILE, or it cannot be written\n");
        return -1;
    }
    core_init(&core);
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_vcpu_syscall_cb(id, on_system_call);
    qemu_plugin_register_vcpu_syscall_ret_cb(id, on_system_return);
    qemu_plugin_register_atexit_cb(id, on_exit_of_process, NULL);
    return 0;
}
