/* Which device this is and how it fares, from what its kernel says; null where it is unknown. The keys are those of the
 * protocol's DEVICE, CONDITIONS and MEMORY (device/agent/protocol.py). */
#ifndef AGENT_DEVICE_H
#define AGENT_DEVICE_H
#include "constants.h"
#include "json.h"
#include "system.h"

#define CPU "/sys/devices/system/cpu/cpu0/cpufreq/"
static char scratch[65536];         /* of a file that is looked at, until the next one is */

static int begins(const char *s, const char *with)
{
    while (*with && *s == *with) s++, with++;
    return !*with;
}

static int contains(const char *s, const char *word)
{
    while (*s && !begins(s, word)) s++;
    return *s != 0;
}

/* What stands behind `key` and a colon in a line of the scratch text; NULL where no line begins with it. */
static const char *line_with(const char *key)
{
    for (const char *s = scratch; *s;) {
        if (begins(s, key)) {
            const char *v = s;
            while (*v && *v != ':' && *v != '=' && *v != '\n') v++;
            if (*v == ':' || *v == '=') {
                for (v++; *v == ' ' || *v == '\t' || *v == '"';) v++;
                return v;
            }
        }
        while (*s && *s != '\n') s++;
        if (*s) s++;
    }
    return 0;
}

static size_t length_of_line(const char *s)
{
    size_t n = 0;
    while (s[n] && s[n] != '\n' && s[n] != '"') n++;
    return n;
}

/* The decimal number at s, as far as it goes, in units of 1 / scale. */
static int number_at(const char *s, double scale, double *to)
{
    const char *end = s;
    int whole;
    while ((*end >= '0' && *end <= '9') || *end == '.' || (end == s && *end == '-')) end++;
    if (end == s || (end == s + 1 && *s == '-')) return 0;
    *to = read_number(s, end, &whole) / scale;
    return 1;
}

static void put_number_or_null(struct text *t, const char *key, int known, double x)
{
    put(t, key);
    if (known) put_double(t, x);
    else put(t, "null");
}

static void put_line_or_null(struct text *t, const char *key, const char *s)
{
    put(t, key);
    if (s && *s) put_word(t, s, length_of_line(s));
    else put(t, "null");
}

static double hottest(int *known)
{
    double most = 0.0, x;
    char path[] = "/sys/class/thermal/thermal_zone0/temp";
    for (*known = 0; path[31] <= '9'; path[31]++)
        if (read_file(path, scratch, sizeof scratch) && number_at(scratch, 1000.0, &x) && x > 0.0 && x < 150.0 && x > most) most = x, *known = 1;
    return most;
}

/* The firmware's throttle word, -1 where there is none. */
static long throttle_word(void)
{
    if (!read_file("/sys/devices/platform/soc/soc:firmware/get_throttled", scratch, sizeof scratch)) return -1;
    const char *s = begins(scratch, "0x") ? scratch + 2 : scratch;
    long word = 0;
    for (; *s; s++) {
        if (hex(*s) < 0) return -1;
        word = word << 4 | hex(*s);
    }
    return word;
}

static void put_flags(struct text *t, long bits)
{
    put_char(t, '[');
    for (int i = 0, any = 0; i < THROTTLE_COUNT; i++)
        if (bits >> i & 1) {
            if (any++) put_char(t, ',');
            put_word(t, THROTTLE_NAMES[i], length_of_line(THROTTLE_NAMES[i]));
        }
    put_char(t, ']');
}

/* The members of CONDITIONS; the throttle word. */
static long put_conditions(struct text *t)
{
    double x = 0.0;
    int known = read_file(CPU "scaling_cur_freq", scratch, sizeof scratch) && number_at(scratch, 1000.0, &x);
    if (!known && read_file("/proc/cpuinfo", scratch, sizeof scratch)) {
        const char *mhz = line_with("cpu MHz");
        known = mhz && number_at(mhz, 1.0, &x);
    }
    put_number_or_null(t, "\"mhz_now\":", known, x);
    put(t, ",\"mhz_firmware\":null,");
    put_line_or_null(t, "\"governor\":", read_file(CPU "scaling_governor", scratch, sizeof scratch) ? scratch : 0);
    x = hottest(&known);
    put_number_or_null(t, ",\"temperature_c\":", known, x);
    const long word = throttle_word();
    put(t, ",\"throttled\":");
    if (word < 0) put(t, "null");
    else {
        put(t, "{\"raw\":"), put_signed(t, word), put(t, ",\"now\":"), put_flags(t, word);
        put(t, ",\"occurred\":"), put_flags(t, word >> 16), put_char(t, '}');
    }
    known = read_file("/proc/loadavg", scratch, sizeof scratch) && number_at(scratch, 1.0, &x);
    put_number_or_null(t, ",\"load_1min\":", known, x);
    return word;
}

static unsigned cores(void)
{
    uint64_t mask[16] = {0};
    unsigned n = 0;
    call(AFFINITY, 0, sizeof mask, (long)mask, 0, 0, 0);
    for (int i = 0; i < 16; i++) n += (unsigned)__builtin_popcountll(mask[i]);
    return n;
}

/* Whether the processor is imitated in software, or shared by a hypervisor: 1, 0, or -1 for unknown; and why. As
 * device/agent/fingerprint.py judges it. The scratch text must be /proc/cpuinfo; another one is there behind it. */
struct judgement { int emulated, virtualised; const char *evidence; };

static struct judgement judged(int is_arm)
{
    const char *speed = line_with("BogoMIPS"), *flags = line_with("flags");
    const int is_foreign = is_arm && !line_with("CPU implementer"), is_qemu = is_arm && speed && begins(speed, "125.00");
    char first[4096] = {0};         /* of a line that may be long */
    if (flags) __builtin_memcpy(first, flags, length_of_line(flags) < sizeof first - 1 ? length_of_line(flags) : sizeof first - 1);
    if (is_foreign) return (struct judgement){1, -1, "/proc/cpuinfo describes another processor: qemu-user"};
    read_file("/sys/devices/system/clocksource/clocksource0/available_clocksource", scratch, sizeof scratch);
    const int is_kvm = contains(scratch, "kvm-clock");
    if (is_arm && (is_kvm || contains(scratch, "tsc") || contains(scratch, "hpet") || contains(scratch, "acpi_pm")))
        return (struct judgement){1, -1, "the kernel keeps time as on another processor: qemu-user"};
    if (is_qemu) return (struct judgement){1, 1, "BogoMIPS 125.00 is QEMU's timer of 62.5 MHz"};
    if (is_kvm) return (struct judgement){0, 1, "the kernel offers kvm-clock: a virtual machine on this processor"};
    if (contains(first, " hypervisor")) return (struct judgement){0, 1, "the processor's flags name a hypervisor"};
    read_file("/proc/device-tree/compatible", scratch, sizeof scratch);
    if (begins(scratch, "linux,dummy-virt")) return (struct judgement){-1, 1, "the device tree is QEMU's virt machine"};
    if (begins(scratch, "raspberrypi,") || flags) return (struct judgement){0, 0, "nothing hints at a hypervisor or an emulator"};
    return (struct judgement){-1, -1, 0};
}

static void put_truth(struct text *t, const char *key, int truth) { put(t, key), put(t, truth < 0 ? "null" : truth ? "true" : "false"); }

/* The object DEVICE. */
static void put_device(struct text *t)
{
    char names[6][65];              /* of uname: system, node, release, version, machine, domain */
    double x = 0.0;
    call(UNAME, (long)names, 0, 0, 0, 0, 0);
    put(t, "{");
    put_line_or_null(t, "\"model\":", read_file("/proc/device-tree/model", scratch, sizeof scratch) ? scratch : 0);
    put_line_or_null(t, ",\"machine\":", names[4]);
    put(t, ",\"cores\":"), put_unsigned(t, cores());
    const int is_arm = begins(names[4], "aarch64") || begins(names[4], "arm");
    read_file("/proc/cpuinfo", scratch, sizeof scratch);
    const char *part = line_with("CPU part"), *name = part ? part : line_with("model name");
    for (int i = 0; part && i < COUNT_OF(ARM_PARTS); i++) if (begins(part, ARM_PARTS[i].code)) name = ARM_PARTS[i].name;
    put_line_or_null(t, ",\"cpu_model\":", name);
    const struct judgement j = judged(is_arm);
    int known = read_file(CPU "cpuinfo_max_freq", scratch, sizeof scratch) && number_at(scratch, 1000.0, &x);
    put_number_or_null(t, ",\"mhz_nominal\":", known, x);
    read_file("/proc/meminfo", scratch, sizeof scratch);
    const char *total = line_with("MemTotal");
    put(t, ",\"memory_total_bytes\":");
    if (total && number_at(total, 1.0, &x)) put_unsigned(t, (uint64_t)x * 1024);
    else put(t, "null");
    put(t, ",\"kernel\":\"Linux "), put_bytes(t, names[2], length_of_line(names[2])), put_char(t, '"');
    put_line_or_null(t, ",\"os\":", read_file("/etc/os-release", scratch, sizeof scratch) ? line_with("PRETTY_NAME") : 0);
    put_truth(t, ",\"python\":null,\"glibc\":null,\"emulated\":", j.emulated), put_truth(t, ",\"virtualised\":", j.virtualised);
    put(t, ",\"evidence\":[");
    if (j.evidence) put_word(t, j.evidence, length_of(j.evidence));
    put(t, "],"), put_conditions(t), put_char(t, '}');
}

/* Sizes of this process in bytes, -1 where the kernel does not say. */
struct resident { int64_t now, peak, anonymous, file_backed, swap; };

static int64_t kilobytes(const char *key)
{
    double x;
    const char *s = line_with(key);
    return s && number_at(s, 1.0, &x) ? (int64_t)x * 1024 : -1;
}

static struct resident resident(void)
{
    read_file("/proc/self/status", scratch, sizeof scratch);
    return (struct resident){kilobytes("VmRSS"), kilobytes("VmHWM"), kilobytes("RssAnon"), kilobytes("RssFile"), kilobytes("VmSwap")};
}

/* Let the peak begin again; 0 where the kernel does not allow it. */
static int reset_peak(void)
{
    const int64_t before = resident().peak;
    const long file = system_open("/proc/self/clear_refs", 1);
    if (file < 0) return 0;
    const int written = write_all(file, "5", 1);
    system_close(file);
    const int64_t after = resident().peak;
    return written && before >= 0 && after >= 0 && after <= before;
}
#endif
