#include "pack.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../format.h"
#include "json.h"
#include "number.h"

enum { PACK_VERSION = 3, MAX_OBSERVATION = 1 << 20, MAX_OUTPUTS = 1 << 16, MAX_GOLDEN = 1 << 20 };

const struct pack *pack;
const struct numbers *sizes;

const void *section_of(enum section which) { return (const char *)pack + pack->section[which].offset; }
size_t section_size(enum section which) { return pack->section[which].size; }
void put_section(struct text *t, enum section which) { put_bytes(t, section_of(which), section_size(which)); }

char *copy_section(enum section which)
{
    const size_t n = section_size(which);
    char *copy = malloc(n + 1);
    if (!copy) abort();
    memcpy(copy, section_of(which), n), copy[n] = 0;
    return copy;
}

/* Whether a section is text that may stand in a JSON string as it is, apart from line breaks. */
static int is_text(enum section which)
{
    const char *s = section_of(which), *const end = s + section_size(which);
    while (s && s < end) s = *s == '"' || *s == '\\' || ((unsigned char)*s < 32 && *s != '\n') ? 0 : skip_utf8(s, end);
    return s != 0;
}

/* Whether a section is a JSON object; or all that is between its braces. */
static int is_object(enum section which, int has_braces)
{
    static struct object members;
    const size_t n = section_size(which);
    char *text = malloc(n + 2 + LINE_SLACK);
    const char *why;
    if (!text) abort();
    text[0] = '{', text[n + 1] = '}', memset(text + n + 2, 0, LINE_SLACK);
    memcpy(text + 1, section_of(which), n);
    const char *const begin = has_braces ? text + 1 : text, *const end = has_braces ? text + n + 1 : text + n + 2;
    const int is_one = n && *begin == '{' && read_members(begin, end, &members, &why) == end;
    free(text);
    return is_one;
}

/* Whether the choices take all outputs, two or more each, and what a float32 counts exactly. */
static int are_choices(void)
{
    const struct choice *c = section_of(CHOICES);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < sizes->choices; i++, sum += (uint64_t)c[i - 1].count)
        if (c[i].count < 2 || c[i].start < -(1 << 23) || c[i].start > 1 << 23) return 0;
    return !sizes->choices || sum == sizes->outputs;
}

static const char *check(size_t bytes)
{
    if (bytes < sizeof *pack || memcmp(pack->magic, "QPAGENT", 8)) return "it is not a policy.pack";
    if (pack->version != PACK_VERSION) return "it is of another version";
    if (pack->bytes != bytes) return "it is not whole";
    for (int i = 0; i < SECTIONS; i++) {
        const uint32_t offset = pack->section[i].offset;
        if (offset % 64 || offset > bytes || pack->section[i].size > bytes - offset) return "a section lies outside";
    }
    const struct numbers *n = sizes = section_of(NUMBERS);
    if (section_size(NUMBERS) != sizeof *n || section_size(SHA256) != 32) return "its numbers are not whole";
    if (!n->rows || n->rows > MAX_GOLDEN || !n->observation || n->observation > MAX_OBSERVATION || !n->outputs
        || n->outputs > MAX_OUTPUTS || !n->lines) return "its sizes are out of range";
    const uint64_t inputs = 4ull * n->rows * n->observation, outputs = 4ull * n->rows * n->outputs;
    if (n->choices > n->outputs || section_size(CHOICES) != n->choices * sizeof(struct choice) || !are_choices())
        return "its choices are not whole";
    const uint64_t decisions = n->choices ? 4ull * n->rows * n->choices : outputs;
    if (section_size(OBSERVATIONS) != inputs || section_size(OUTPUTS) != outputs || section_size(TOLERANCE) != outputs
        || section_size(DECISIONS) != decisions || section_size(STEPS) != 4ull * n->outputs)
        return "its golden vectors are not whole";
    const size_t fallback = section_size(FALLBACK_ACTION), bounds = section_size(BOUNDS);
    if (section_size(PERIOD) != 8 || (bounds && bounds != 16ull * n->outputs)) return "its bounds are not whole";
    if (fallback && fallback != 4ull * (n->choices ? n->choices : n->outputs)) return "its fallback is not whole";
    if (!is_text(PRECISION) || !is_text(POLICY) || !is_text(WANTED) || !is_text(FIELDS)) return "its text is damaged";
    if (!is_object(LOADED, 1) || !is_object(BUNDLE, 1) || !is_object(HELP, 0)) return "its replies are damaged";
    const struct native_file *f = section_of(ARTIFACT);
    if (section_size(ARTIFACT) < sizeof *f || f->outputs != n->outputs || f->observation != n->observation || f->state)
        return "its artifact is of another policy";
    return 0;
}

const char *open_pack(const char *path)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0) return "it is not there";
    const int is_file = !fstat(file, &status) && S_ISREG(status.st_mode) && status.st_size > 0;
    void *const mapped = is_file ? mmap(0, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
    close(file);
    if (mapped == MAP_FAILED) return "it cannot be read";
    pack = mapped;
    return check((size_t)status.st_size);
}
