#include "device.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "constants.h"

#define CPU "/sys/devices/system/cpu/cpu0/cpufreq/"
static char scratch[65536];         /* of the file that was read last */

/* Read a small file into the scratch text, without trailing line breaks and zero bytes; its length, 0 if there is no
 * such file. */
static size_t read_file(const char *path)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    size_t have = 0;
    if (file >= 0) {
        ssize_t n;
        while (have + 1 < sizeof scratch && (n = read(file, scratch + have, sizeof scratch - 1 - have)) > 0)
            have += (size_t)n;
        close(file);
    }
    while (have && (scratch[have - 1] == '\n' || scratch[have - 1] == ' ' || !scratch[have - 1])) have--;
    scratch[have] = 0;
    return have;
}

static int begins(const char *s, const char *with) { return !strncmp(s, with, strlen(with)); }

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

static size_t line_length(const char *s) { return strcspn(s, "\n\""); }

/* The decimal number at s, as far as it goes, in units of 1 / scale. */
static int number_at(const char *s, double scale, double *to)
{
    char *end;
    const double x = strtod(s, &end);
    if (end == s || (*s != '-' && (*s < '0' || *s > '9'))) return 0;
    *to = x / scale;
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
    if (s && *s) put_string(t, s, line_length(s));
    else put(t, "null");
}

static double hottest_zone(int *is_known)
{
    double hottest = 0.0, x;
    char path[] = "/sys/class/thermal/thermal_zone0/temp";
    for (*is_known = 0; path[31] <= '9'; path[31]++)
        if (read_file(path) && number_at(scratch, 1000.0, &x) && x > hottest && x < 150.0) hottest = x, *is_known = 1;
    return hottest;
}

long read_throttle_word(void)
{
    char *end;
    if (!read_file("/sys/devices/platform/soc/soc:firmware/get_throttled")) return -1;
    const long word = strtol(scratch, &end, 16);
    return *end ? -1 : word;
}

static void put_flags(struct text *t, long bits)
{
    put_char(t, '[');
    for (int i = 0, any = 0; i < THROTTLE_COUNT; i++)
        if (bits >> i & 1) {
            if (any++) put_char(t, ',');
            put_string(t, THROTTLE_NAMES[i], line_length(THROTTLE_NAMES[i]));
        }
    put_char(t, ']');
}

long put_conditions(struct text *t)
{
    double x = 0.0;
    int known = read_file(CPU "scaling_cur_freq") && number_at(scratch, 1000.0, &x);
    if (!known && read_file("/proc/cpuinfo")) {
        const char *mhz = line_with("cpu MHz");
        known = mhz && number_at(mhz, 1.0, &x);
    }
    put_number_or_null(t, "\"mhz_now\":", known, x);
    put(t, ",\"mhz_firmware\":null,");
    put_line_or_null(t, "\"governor\":", read_file(CPU "scaling_governor") ? scratch : 0);
    x = hottest_zone(&known);
    put_number_or_null(t, ",\"temperature_c\":", known, x);
    const long word = read_throttle_word();
    put(t, ",\"throttled\":");
    if (word < 0) put(t, "null");
    else {
        put(t, "{\"raw\":"), put_signed(t, word), put(t, ",\"now\":"), put_flags(t, word);
        put(t, ",\"occurred\":"), put_flags(t, word >> 16), put_char(t, '}');
    }
    known = read_file("/proc/loadavg") && number_at(scratch, 1.0, &x);
    put_number_or_null(t, ",\"load_1min\":", known, x);
    return word;
}

/* Whether the processor is imitated in software, or shared by a hypervisor: 1, 0, or -1 for unknown; and why. As
 * device/agent/fingerprint.py judges it. The scratch text must be /proc/cpuinfo; another one is there behind it. */
struct emulation { int emulated, virtualised; const char *evidence; };

static struct emulation find_emulation(int is_arm)
{
    const char *speed = line_with("BogoMIPS"), *flags = line_with("flags");
    const int is_foreign = is_arm && !line_with("CPU implementer");
    const int is_qemu = is_arm && speed && begins(speed, "125.00");
    char first[4096] = {0};         /* of a line that may be long */
    if (flags) memcpy(first, flags, line_length(flags) < sizeof first ? line_length(flags) : sizeof first - 1);
    if (is_foreign) return (struct emulation){1, -1, "/proc/cpuinfo describes another processor: qemu-user"};
    read_file("/sys/devices/system/clocksource/clocksource0/available_clocksource");
    const int is_kvm = strstr(scratch, "kvm-clock") != 0;
    if (is_arm && (is_kvm || strstr(scratch, "tsc") || strstr(scratch, "hpet") || strstr(scratch, "acpi_pm")))
        return (struct emulation){1, -1, "the kernel keeps time as on another processor: qemu-user"};
    if (is_qemu) return (struct emulation){1, 1, "BogoMIPS 125.00 is QEMU's timer of 62.5 MHz"};
    if (is_kvm) return (struct emulation){0, 1, "the kernel offers kvm-clock: a virtual machine on this processor"};
    if (strstr(first, " hypervisor")) return (struct emulation){0, 1, "the processor's flags name a hypervisor"};
    read_file("/proc/device-tree/compatible");
    if (begins(scratch, "linux,dummy-virt")) return (struct emulation){-1, 1, "the device tree is QEMU's virt machine"};
    if (begins(scratch, "raspberrypi,") || flags)
        return (struct emulation){0, 0, "nothing hints at a hypervisor or an emulator"};
    return (struct emulation){-1, -1, 0};
}

static void put_truth(struct text *t, const char *key, int truth)
{
    print(t, "%s%s", key, truth < 0 ? "null" : truth ? "true" : "false");
}

void put_device(struct text *t)
{
    struct utsname system;
    cpu_set_t cores;
    double x = 0.0;
    uname(&system);
    put(t, "{");
    put_line_or_null(t, "\"model\":", read_file("/proc/device-tree/model") ? scratch : 0);
    put_line_or_null(t, ",\"machine\":", system.machine);
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof cores, &cores);
    print(t, ",\"cores\":%d", CPU_COUNT(&cores));
    const int is_arm = begins(system.machine, "aarch64") || begins(system.machine, "arm");
    read_file("/proc/cpuinfo");
    const char *part = line_with("CPU part"), *name = part ? part : line_with("model name");
    for (int i = 0; part && i < COUNT_OF(ARM_PARTS); i++)
        if (begins(part, ARM_PARTS[i].code)) name = ARM_PARTS[i].name;
    put_line_or_null(t, ",\"cpu_model\":", name);
    const struct emulation found = find_emulation(is_arm);
    int known = read_file(CPU "cpuinfo_max_freq") && number_at(scratch, 1000.0, &x);
    put_number_or_null(t, ",\"mhz_nominal\":", known, x);
    read_file("/proc/meminfo");
    const char *total = line_with("MemTotal");
    put(t, ",\"memory_total_bytes\":");
    if (total && number_at(total, 1.0, &x)) put_unsigned(t, (uint64_t)x * 1024);
    else put(t, "null");
    print(t, ",\"kernel\":\"Linux %s\"", system.release);
    put_line_or_null(t, ",\"os\":", read_file("/etc/os-release") ? line_with("PRETTY_NAME") : 0);
    put(t, ",\"python\":null,\"glibc\":null");
    put_truth(t, ",\"emulated\":", found.emulated), put_truth(t, ",\"virtualised\":", found.virtualised);
    put(t, ",\"evidence\":[");
    if (found.evidence) put_string(t, found.evidence, strlen(found.evidence));
    put(t, "],"), put_conditions(t), put_char(t, '}');
}

static int64_t kilobytes(const char *key)
{
    double x;
    const char *s = line_with(key);
    return s && number_at(s, 1.0, &x) ? (int64_t)x * 1024 : -1;
}

struct resident read_resident(void)
{
    read_file("/proc/self/status");
    return (struct resident){kilobytes("VmRSS"), kilobytes("VmHWM"), kilobytes("RssAnon"), kilobytes("RssFile"),
                             kilobytes("VmSwap")};
}

int reset_peak(void)
{
    const int64_t before = read_resident().peak;
    const int file = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const int is_written = write(file, "5", 1) == 1;
    close(file);
    const int64_t after = read_resident().peak;
    return is_written && before >= 0 && after >= 0 && after <= before;
}
