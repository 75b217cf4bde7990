#include "floats.h"
#include "team.h"

enum { MOST_LAYERS = 64 };
/* Bytes of memory that an artifact may need: NEED_OF_RESULTS, and NEED_PER_BYTE for each byte of its file.
 * Two buffers of results, one of an image's lower bits and the lists of rows have a largest size that the format limits.
 * Everything else belongs to arrays in the file. An output of a convolution has n weights of at least 2 bits, a bias and a
 * multiplier there, 8 + n / 4 bytes; here it has MOST_WINDOWS sums and, from pack_quads, n bytes, each line of a window
 * filled up to a multiple of 8: at most 6.5 times as much, of a side of 9 and one channel. Only an artifact whose layers
 * share their weights, which are unpacked for each layer, can need more. */
enum { NEED_OF_RESULTS = 4 * NATIVE_LARGEST_ELEMENTS, NEED_PER_BYTE = 8 };

struct native {
    const struct native_file *file;
    const struct native_kernel_set *set;
    struct native_list list;
    struct native_order *order;
    uint16_t *every;                /* 0, 1, 2 ...: all rows */
    float *value;                   /* of the list's rows, of floats */
    uint8_t *act[2];                /* stored results, of the layer before and of this one; floats are stored as they are */
    uint8_t *window;                /* what one output of a convolution sees */
    int32_t *acc;
    double *wide;                   /* what a normalisation is fed */
    uint8_t *hidden;                /* stored levels of a hidden state */
    float *gates[2];                /* sums of what is fed to a recurrent layer, and of its hidden state */
    float *next;                    /* states */
    uint8_t *low;                   /* these four as struct native_windows has them */
    uint32_t *large;
    int8_t *quads[MOST_LAYERS];     /* NULL where no set here takes the layer's weights so */
    int32_t *signed_bias[MOST_LAYERS]; /* bias + 128 * the sum of an output's weights, for a set that takes_int8 */
    uint8_t *heavy[MOST_LAYERS];
    uint8_t mode[MOST_LAYERS];
    struct native_team team;
};

/* ---- checking ------------------------------------------------------------------------------------------------------ */
/* Sizes alone, so that nothing behind it can overflow. */
static enum native_error check_layer(const struct native_file *f, const struct native_layer *y)
{
    if ((y->bits & (y->bits - 1)) || y->bits < 2 || y->bits > 32 || y->widened > NATIVE_DYNAMIC || is_float(y) != is_float(f->layer)) return NATIVE_BAD_LAYER;
    const uint32_t chunk = is_float(y) ? NATIVE_CHUNK : 8 * NATIVE_CHUNK / y->bits;
    if (y->in == 0 || y->in > NATIVE_LARGEST_IN || y->out == 0 || y->out > NATIVE_LARGEST_ELEMENTS) return NATIVE_BAD_SIZE;
    if (y->padded != (y->out + chunk - 1) / chunk * chunk) return NATIVE_BAD_LAYER;
    if (is_conv(y)) {
        if (y->height == 0 || y->width == 0 || y->channels == 0 || y->height > 65536 || y->width > 65536) return NATIVE_BAD_SIZE;
        if (y->channels > NATIVE_LARGEST_ELEMENTS / y->height / y->width) return NATIVE_BAD_SIZE;
        if (y->stride == 0 || y->side > y->height || y->side > y->width) return NATIVE_BAD_LAYER;
        if ((uint64_t)y->side * y->side * y->channels != y->in || y->gamma) return NATIVE_BAD_LAYER;
        if (results(y) > NATIVE_LARGEST_ELEMENTS) return NATIVE_BAD_SIZE;
    } else if (y->height || y->width || y->channels || y->stride) return NATIVE_BAD_LAYER;
    if (!lies_inside(f, y->weights, (uint64_t)y->in * y->padded / 8 * y->bits)) return NATIVE_BAD_OFFSET;
    if (!lies_inside(f, y->bias, 4ull * y->padded)) return NATIVE_BAD_OFFSET;
    if (is_float(y)) return check_floats(f, y);
    if (!lies_inside(f, y->multiplier, 4ull * y->padded)) return NATIVE_BAD_OFFSET;
    if (y->signed_bias && !lies_inside(f, y->signed_bias, 4ull * y->padded)) return NATIVE_BAD_OFFSET;
    if (y->table && !lies_inside(f, y->table, 256)) return NATIVE_BAD_OFFSET;
    if (y->dense > 1 || !y->gamma != !y->beta || (y->gamma && y->table) || (y->signed_bias && y->bits != 8)) return NATIVE_BAD_LAYER;
    if (y->gamma && (!lies_inside(f, y->gamma, 4ull * y->out) || !lies_inside(f, y->beta, 4ull * y->out))) return NATIVE_BAD_OFFSET;
    if (!is_level(y->zero) || !is_level(y->low) || !is_level(y->base) || !is_level(y->norm_zero) || !is_level(y->norm_low)) return NATIVE_BAD_NUMBER;
    if (!are_finite(f, y->multiplier, y->padded) || !is_positive(y->scale)) return NATIVE_BAD_NUMBER;
    if (y->cell > NATIVE_LSTM || (y->cell && (is_conv(y) || y->gamma || y->table || y->out % (y->cell == NATIVE_GRU ? 3 : 4) || y->in != units(y)))) return NATIVE_BAD_LAYER;
    if (y->cell) {
        if (!is_positive(y->norm_scale) || y->norm_low < y->base || y->activation || y->slope != 0.0f || y->base != -128) return NATIVE_BAD_NUMBER;
    } else if (y->gamma) {
        if (!are_finite(f, y->gamma, y->out) || !are_finite(f, y->beta, y->out) || y->activation >= NATIVE_ACTIVATIONS) return NATIVE_BAD_NUMBER;
        if (!is_positive(y->norm_scale) || !(y->slope >= -3.4e38f && y->slope <= 3.4e38f) || y->norm_low < y->base) return NATIVE_BAD_NUMBER;
    } else if (y->activation || y->norm_scale != 0.0f || y->norm_zero || y->norm_low || y->slope != 0.0f) return NATIVE_BAD_PADDING;
    if (!y->table && !y->gamma && y->low < y->base) return NATIVE_BAD_NUMBER;
    if (y->table)
        for (int i = 0; i < 256; i++) if (((const int8_t *)at(f, y->table))[i] < y->base) return NATIVE_BAD_NUMBER;
    if (!are_zero((const int32_t *)at(f, y->bias) + y->out, 4 * (size_t)(y->padded - y->out))) return NATIVE_BAD_PADDING;
    if (!are_zero((const float *)at(f, y->multiplier) + y->out, 4 * (size_t)(y->padded - y->out))) return NATIVE_BAD_PADDING;
    if (!are_weights(at(f, y->weights), (size_t)y->in * y->padded / 8 * y->bits, y->bits)) return NATIVE_BAD_NUMBER;
    return are_zero(y->pad, sizeof y->pad) ? NATIVE_OK : NATIVE_BAD_PADDING;
}

/* How the levels of input, vector and outputs are written. */
static enum native_error check_levels(const struct native_file *f)
{
    if (is_float(f->layer)) {
        const int32_t unused[] = {f->zero, f->base, f->vector_zero, f->vector_base, f->output_zero};
        return !are_zero(unused, sizeof unused) || f->scale != 0.0f || f->vector_scale != 0.0f || f->output_scale != 0.0f ? NATIVE_BAD_PADDING : NATIVE_OK;
    }
    if (!is_positive(f->scale) || !is_positive(f->output_scale) || !is_level(f->zero) || !is_level(f->output_zero)) return NATIVE_BAD_NUMBER;
    if (f->base != -128 || f->vector_base < -128 || f->vector_base > 127 || !is_level(f->vector_zero)) return NATIVE_BAD_NUMBER;
    if (f->vector ? !is_positive(f->vector_scale) || f->vector_base != f->layer[f->joins - 1].base : f->vector_scale != 0.0f || f->vector_zero || f->vector_base)
        return NATIVE_BAD_NUMBER;
    return NATIVE_OK;
}

static uint64_t lay_out(struct native *e, const struct native_file *f);

static enum native_error check(const void *file, size_t bytes)
{
    const struct native_file *f = file;
    if (bytes < sizeof *f || (uintptr_t)file % NATIVE_LINE || memcmp(f->magic, "QPNATIVE", 8)) return NATIVE_NO_ARTIFACT;
    if (f->version != NATIVE_VERSION) return NATIVE_OTHER_VERSION;
    if (f->bytes != bytes) return NATIVE_TRUNCATED;
    if (f->layers == 0 || f->layers > MOST_LAYERS || bytes < sizeof *f + f->layers * sizeof(struct native_layer)) return NATIVE_BAD_SIZE;
    if (f->observation == 0 || f->observation > NATIVE_LARGEST_ELEMENTS || f->vector >= f->observation) return NATIVE_BAD_SIZE;
    if ((f->normaliser != 1 && f->normaliser != f->observation) || f->joins >= f->layers || !f->joins != !f->vector) return NATIVE_BAD_SIZE;
    const uint32_t arrays[4] = {f->mean, f->inverse, f->lowest, f->highest};
    for (int i = 0; i < 4; i++) if (!lies_inside(f, arrays[i], 4ull * f->normaliser)) return NATIVE_BAD_OFFSET;
    if (!are_finite(f, f->mean, f->normaliser) || !are_finite(f, f->inverse, f->normaliser)) return NATIVE_BAD_NUMBER;
    const enum native_error wrong = check_levels(f);
    if (wrong) return wrong;
    const int32_t base = is_float(f->layer) ? 0 : -128;
    uint64_t there = f->observation - f->vector, state = 0;
    for (uint32_t i = 0; i < f->layers; i++) {
        const struct native_layer *y = &f->layer[i];
        const enum native_error error = check_layer(f, y);
        if (error) return error;
        if (y->cell) {              /* its gates' other half is what the layer before it makes, as it is */
            if (i == 0) return NATIVE_BAD_CHAIN;
            const struct native_layer *fed = y - 1;
            const int is_plain = !is_conv(fed) && !fed->cell && !fed->gamma && !fed->table && !fed->activation;
            if (!is_plain || fed->out != y->out || fed->base != base || i == f->joins) return NATIVE_BAD_CHAIN;
            state += state_of(y);
        } else if (count_inputs(y) != there) return NATIVE_BAD_CHAIN;
        there = results(&f->layer[i]) + (i + 1 == f->joins ? f->vector : 0);
    }
    const struct native_layer *last = &f->layer[f->layers - 1];
    if (f->state != state || last->cell) return NATIVE_BAD_CHAIN;
    if (is_conv(last) || last->out != f->outputs || last->base != base || last->gamma || last->table) return NATIVE_BAD_CHAIN;
    if (f->head && is_float(f->layer)) { /* the first two arrays may be infinite */
        if (!lies_inside(f, f->head, 16ull * f->outputs)) return NATIVE_BAD_OFFSET;
        const uint32_t *ends = at(f, f->head);
        for (uint32_t i = 0; i < 4 * f->outputs; i++) if ((ends[i] & 0x7fffffff) > 0x7f800000u - (i >= 2 * f->outputs)) return NATIVE_BAD_NUMBER;
    } else if (f->head && (!lies_inside(f, f->head, 1024ull * f->outputs) || !are_finite(f, f->head, 256 * f->outputs))) return NATIVE_BAD_OFFSET;
    if (!are_zero(f->pad, sizeof f->pad)) return NATIVE_BAD_PADDING;
    const uint64_t need = lay_out(0, f);
    return need > NEED_OF_RESULTS + (uint64_t)NEED_PER_BYTE * bytes || need > SIZE_MAX / 2 ? NATIVE_LARGE_NEED : NATIVE_OK;
}

const char *native_message(enum native_error error)
{
    static const char *const WORDS[] = {
        "", "is no native artifact, or does not lie at a multiple of 64 bytes", "has another version of the format",
        "has another size than it says", "has a size that is 0, too large, or does not fit the others", "has an array that does not lie inside of it",
        "has a layer whose numbers contradict each other", "has layers that do not fit each other", "has a number that is not finite, or no level",
        "has padding that is not zero", "does not fit the memory that was given",
        "needs more memory than 64 MiB and 8 times its size: its layers share arrays"};
    return WORDS[error];
}

/* ---- sets of kernels ----------------------------------------------------------------------------------------------- */
extern const struct native_kernel_set native_plain;
#if defined __x86_64__
extern const struct native_kernel_set native_avx2, native_avx512;
#elif defined __ARM_NEON
extern const struct native_kernel_set native_neon;
#if defined NATIVE_DOT
extern const struct native_kernel_set native_dot;
#endif
#endif

/* The set with this number among those that run here; NULL behind the last. */
static const struct native_kernel_set *set_of(unsigned number)
{
    const struct native_kernel_set *const sets[] = {
#if defined __x86_64__
        &native_avx512, &native_avx2,
#elif defined __ARM_NEON
#if defined NATIVE_DOT
        &native_dot,
#endif
        &native_neon,
#endif
        &native_plain};
    for (unsigned i = 0; i < sizeof sets / sizeof *sets; i++)
        if (sets[i]->runs_here() && number-- == 0) return sets[i];
    return 0;
}

/* The first available set that takes weights in quads, NULL if none does; those of one processor share their layout. */
static const struct native_kernel_set *set_of_quads(void)
{
    const struct native_kernel_set *set;
    for (unsigned i = 0; (set = set_of(i)); i++) if (set->convolve) return set;
    return 0;
}

static int takes_quads_of(const struct native_kernel_set *set, const struct native_layer *y)
{
    if (!set || is_float(y)) return 0;
    return is_conv(y) ? set->windows > 0 : y->bits == 8 && (uint64_t)y->in * y->padded <= set->most_dense && y->dense >= set->only_dense;
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */
struct arena {
    uint8_t *start;                 /* NULL where it is only counted */
    uint64_t used;
};

static void *reserve(struct arena *a, uint64_t size)
{
    void *place = a->start ? a->start + a->used : 0;
    a->used += (size + NATIVE_LINE - 1) / NATIVE_LINE * NATIVE_LINE;
    return place;
}

/* Outputs, lines and quads of rows as struct native_windows has them; a dense layer is a window of one line. */
static uint32_t wide_of(const struct native_layer *y) { return (y->out + 15) / 16 * 16; }
static uint32_t lines_of(const struct native_layer *y) { return is_conv(y) ? y->side : 1; }
static uint32_t run_of(const struct native_layer *y) { return is_conv(y) ? y->side * y->channels : y->in; }
static uint32_t quads_of_line(const struct native_layer *y) { return (run_of(y) + 7) / 8 * 2; }
static uint32_t quads_of(const struct native_layer *y) { return lines_of(y) * quads_of_line(y); }

/* Lay everything out from `e` on; the bytes that takes. Called with NULL to count them. */
static uint64_t lay_out(struct native *e, const struct native_file *f)
{
    uint64_t elements = f->observation, rows = 1, sums = 1, wide = 1, window = 1, large = 0, low = 0, gates = 0;
    const struct native_kernel_set *set = set_of_quads();
    const int windows = set && !is_float(f->layer);
    const uint64_t size = size_of(f->layer); /* of a stored result */
    for (uint32_t i = 0; i < f->layers; i++) {
        const struct native_layer *y = &f->layer[i];
        const uint64_t behind = (y->cell ? y->out : results(y)) + f->vector;
        if (y->cell && y->out > gates) gates = y->out;
        elements = behind > elements ? behind : elements;
        rows = y->in > rows ? y->in : rows;
        sums = y->padded > sums ? y->padded : sums;
        if (y->gamma && y->out > wide) wide = y->out;
        if (is_conv(y) && y->in > window) window = y->in;
        if (y->widened == NATIVE_DYNAMIC && y->in > low) low = y->in;
    }
    elements += 256 + SLACK;        /* the outputs that fill a last chunk */
    const uint64_t most = rows;
    rows = 3 * rows + SLACK + AHEAD;
    struct native counted;
    struct native *n = e ? e : &counted;
    struct arena a = {(uint8_t *)e, 0};
    reserve(&a, sizeof *n);
    n->value = reserve(&a, size > 1 ? size * most : 0);
    n->act[0] = reserve(&a, size * elements);
    n->act[1] = reserve(&a, size * elements);
    n->window = reserve(&a, size * window + SLACK);
    n->list.row = reserve(&a, 2 * rows);
    n->list.value = reserve(&a, rows);
    n->list.count = reserve(&a, rows + 2 * SLACK);
    n->acc = reserve(&a, 4 * (windows ? MOST_WINDOWS : 1) * (sums + SLACK));
    n->wide = reserve(&a, 8 * wide);
    n->hidden = reserve(&a, gates ? gates + SLACK : 0);
    for (int i = 0; i < 2; i++) n->gates[i] = reserve(&a, 4 * gates);
    n->next = reserve(&a, 4 * (uint64_t)f->state);
    n->every = reserve(&a, 2 * most);
    n->order = reserve(&a, sizeof *n->order);
    for (uint32_t i = 0; i < f->layers; i++) {
        const struct native_layer *y = &f->layer[i];
        n->quads[i] = 0, n->heavy[i] = 0, n->signed_bias[i] = 0;
        if (!takes_quads_of(set, y)) continue;
        n->quads[i] = reserve(&a, 4 * (uint64_t)quads_of(y) * wide_of(y));
        if (set->takes_int8) n->signed_bias[i] = reserve(&a, 4 * (uint64_t)wide_of(y));
        else {
            if (is_conv(y)) n->heavy[i] = reserve(&a, quads_of(y) / 2 * (uint64_t)(wide_of(y) / 16));
            large = quads_of(y) > large ? quads_of(y) : large;
        }
        low = count_inputs(y) > low ? count_inputs(y) : low;
    }
    n->low = reserve(&a, low + SLACK);
    n->large = reserve(&a, 8 * large + 4 * SLACK);
    return a.used;
}

/* A weight as it is stored, less what it is stored too large. */
static int weight_at(const struct native_file *f, const struct native_layer *y, uint32_t row, uint32_t output)
{
    const uint32_t fits = 8 * NATIVE_CHUNK / y->bits, chunks = y->padded / fits, chunk = output / fits, block = chunk & ~3u;
    const uint32_t width = chunks - block < 4 ? chunks - block : 4, part = output % fits / NATIVE_CHUNK;
    const uint8_t *start = (const uint8_t *)at(f, y->weights) + (size_t)block * NATIVE_CHUNK * y->in;
    const uint8_t byte = start[((size_t)row * width + chunk - block) * NATIVE_CHUNK + output % NATIVE_CHUNK];
    return y->bits == 8 ? (int8_t)byte : (byte >> part * y->bits & ((1 << y->bits) - 1)) - (y->bits == 4 ? 8 : 1);
}

/* A layer's weights, and which of them are heavy, as struct native_windows has them; `block` outputs at a time. */
static void pack_quads(const struct native_file *f, const struct native_layer *y, uint32_t block, int8_t *to)
{
    const uint32_t run = run_of(y), wide = wide_of(y);
    for (uint32_t first = 0; first < wide; first += block)
        for (uint32_t k = 0; k < lines_of(y); k++)
            for (uint32_t q = 0; q < quads_of_line(y); q++)
                for (uint32_t output = first; output < wide && output < first + block; output++)
                    for (uint32_t i = 4 * q; i < 4 * q + 4; i++) *to++ = (int8_t)(i < run && output < y->out ? weight_at(f, y, k * run + i, output) : 0);
}

/* bias + 128 * the sum of each output's weights, of blocks of 64 outputs. */
static void sign_bias(const struct native_file *f, const struct native_layer *y, const int8_t *quads, int32_t *bias)
{
    const uint32_t wide = wide_of(y);
    memcpy(bias, at(f, y->bias), 4 * (size_t)y->out);
    for (uint32_t first = 0; first < wide; first += NATIVE_BLOCK)
        for (uint32_t q = 0, n = wide - first < NATIVE_BLOCK ? wide - first : NATIVE_BLOCK; q < quads_of(y); q++)
            for (uint32_t i = 0; i < n; i++, quads += 4)
                bias[first + i] = (int32_t)((uint32_t)bias[first + i] + 128u * (uint32_t)(quads[0] + quads[1] + quads[2] + quads[3]));
}

static void find_heavy(const struct native_layer *y, const int8_t *quads, uint8_t *heavy)
{
    const uint32_t size = 4 * wide_of(y);
    for (uint32_t q = 0; q < quads_of(y); q += 2, quads += 2 * size)
        for (uint32_t i = 0; i < size; i += 2) {
            int sum = 0;
            for (uint32_t j = i; j < i + 2; j++) sum += (quads[j] < 0 ? -quads[j] : quads[j]) + (quads[size + j] < 0 ? -quads[size + j] : quads[size + j]);
            heavy[q / 2 * (size / 64) + i / 64] |= sum > 258;
        }
}

size_t native_memory(const void *file, size_t bytes) { return check(file, bytes) ? 0 : (size_t)lay_out(0, file); }

enum native_error native_open(void *memory, size_t size, const void *file, size_t bytes)
{
    const enum native_error error = check(file, bytes);
    if (error) return error;
    const struct native_file *f = file;
    if ((uintptr_t)memory % NATIVE_LINE || size < lay_out(0, f)) return NATIVE_SMALL_MEMORY;
    struct native *e = memory;
    memset(e, 0, (size_t)lay_out(0, f));
    lay_out(e, f);
    e->file = f;
    for (int mask = 0; mask < 256; mask++)
        for (int bit = 0; bit < 8; bit++)
            if (mask >> bit & 1) e->order->place[mask][e->order->count[mask]++] = (uint8_t)bit;
    const struct native_kernel_set *set = set_of_quads();
    for (uint32_t i = 0; i < f->layers; i++) {
        /* Quads of all rows are faster than the rows that count, unless these are few. */
        e->mode[i] = f->layer[i].dense || e->quads[i] ? NATIVE_DENSE : NATIVE_SPARSE;
        if (!e->quads[i]) continue;
        const uint32_t block = is_conv(&f->layer[i]) && !set->takes_int8 ? wide_of(&f->layer[i]) : NATIVE_BLOCK;
        pack_quads(f, &f->layer[i], block, e->quads[i]);
        if (set->takes_int8) sign_bias(f, &f->layer[i], e->quads[i], e->signed_bias[i]);
        else if (is_conv(&f->layer[i])) find_heavy(&f->layer[i], e->quads[i], e->heavy[i]);
    }
    for (uint32_t i = 0; i < f->layers; i++)
        for (uint32_t k = 0; k < f->layer[i].in; k++) e->every[k] = (uint16_t)k;
    native_use(e, native_kernels(0));
    return NATIVE_OK;
}

/* ---- deciding ------------------------------------------------------------------------------------------------------ */
/* A value above `piece`, at least 127, becomes several rows behind the last. */
static int spread(struct native_list *l, int found, int piece)
{
    int k = found;
    for (int i = 0; i < found; i += 8) {
        uint64_t eight;
        memcpy(&eight, l->value + i, 8);
        if (!(eight & 0x8080808080808080)) continue;
        for (int j = i; j < i + 8 && j < found; j++)
            for (int rest = l->value[j] - piece; rest > 0; rest -= piece) {
                l->value[j] = (uint8_t)piece;
                l->row[k] = l->row[j];
                l->value[k++] = (uint8_t)(rest > piece ? piece : rest);
            }
    }
    return k;
}

/* The rows from ... to - 1 of a layer, given its stored inputs u. */
static void list_rows(struct native *e, const struct native_layer *y, const uint8_t *u, uint32_t from, uint32_t to, int is_dense, int is_signed)
{
    struct native_list *l = &e->list;
    const struct native_kernel_set *set = e->set;
    const int n = (int)(to - from);
    uint16_t *restrict row = l->row;
    uint8_t *restrict value = l->value;
    int k = n;
    u += from;
    if (!is_dense) {
        k = set->compact(u, n, row, value, e->order);
        if (from) for (int i = 0; i < k; i++) row[i] = (uint16_t)(row[i] + from);
    } else {
        memcpy(row, e->every + from, 2 * (size_t)n);
        if (is_signed) for (int i = 0; i < n; i++) value[i] = u[i] ^ 128;
        else memcpy(value, u, (size_t)n);
    }
    if (y->bits == 8 && !is_signed && set->piece < 255) k = spread(l, k, set->piece);
    const uint16_t some = k ? row[k - 1] : 0;
    for (; k % set->multiple; k++) row[k] = some, value[k] = 0;
    for (int i = 0; i < AHEAD + 4; i++) row[k + i] = some;
    memset(value + k, 0, AHEAD + 4);
    l->rows = k;
    int32_t sum = 0;
    if (y->bits != 8 && !set->group) for (int i = 0; i < k; i++) sum += value[i];
    l->sum = sum;
    if (set->group) set->group(l, (int)y->bits, is_signed);
}

/* From the sums of n outputs from `first` on, `less` too large, to what is stored of them. */
static void finish(struct native *e, const struct native_layer *y, const int32_t *acc, const int32_t *bias, int32_t less, uint32_t first,
                   uint32_t n, uint8_t *stored)
{
    const struct native_file *f = e->file;
    const int cut = y->table || y->gamma;
    const float *multiplier = at(f, y->multiplier);
    e->set->requantize(acc, bias + first, less, multiplier + first, (int)n, y->zero, y->low, cut ? -128 : y->base, stored);
    if (y->table) {
        const int8_t *table = at(f, y->table);
        for (uint32_t i = 0; i < n && first + i < y->out; i++) stored[i] = (uint8_t)(table[stored[i]] - y->base);
    }
    if (y->gamma) {
        for (uint32_t i = 0; i < y->out; i++) e->wide[i] = y->scale * (float)(stored[i] - 128 - y->zero);
        normalise(e->wide, y->out, at(f, y->gamma), at(f, y->beta));
        for (uint32_t i = 0; i < y->out; i++) {
            const float x = (float)activate(y->activation, e->wide[i], y->slope);
            stored[i] = (uint8_t)(limited(rounded(x / y->norm_scale) + y->norm_zero, y->norm_low, 127) - y->base);
        }
    }
}

static int takes_all(const struct native *e, const struct native_layer *y) { return e->mode[y - e->file->layer] == NATIVE_DENSE; }
static int takes_quads(const struct native *e, const struct native_layer *y) { return takes_all(e, y) && e->quads[y - e->file->layer] && e->set->convolve && (e->set->windows || !is_conv(y)); }
static int takes_signed(const struct native *e, const struct native_layer *y) { return takes_all(e, y) && y->signed_bias && e->set->takes_signed && !(is_conv(y) && takes_quads(e, y)); }

/* The values from ... to - 1 of a layer's as sets take them with quads. */
static void lower(struct native *e, const struct native_layer *y, const uint8_t *u, size_t from, size_t to)
{
    uint8_t *restrict low = e->low;
    if (e->set->takes_int8 || takes_signed(e, y)) for (size_t i = from; i < to; i++) low[i] = u[i] ^ 128;
    else if (e->set->piece < 255) for (size_t i = from; i < to; i++) low[i] = u[i] & 127;
}

/* multiply, of a layer whose weights lie in quads; a part begins at whole blocks of outputs and pairs of quads of rows. */
static void multiply_quads(struct native *e, const struct native_layer *y, const uint8_t *u, uint32_t from, uint32_t to, uint32_t first, uint32_t last)
{
    const int all = (int)quads_of(y), quads = to < y->in ? (int)(to - from) / 4 : all - (int)from / 4;
    const size_t layer = (size_t)(y - e->file->layer), passed = (size_t)first * (size_t)all;
    const struct native_windows w = {
        .u = u, .low = e->low, .weights = e->quads[layer] + 4 * passed, .windows = 1, .is_signed = takes_signed(e, y),
        .side = 1, .run = (int)(to - from), .quads = quads, .wide = (int)(last - first), .passed = (int)from / 4, .block = all, .large = e->large};
    const size_t corner = from;
    lower(e, y, u, from, to);
    e->set->convolve(&w, &corner, e->acc + first);
}

/* Sums of the outputs from `first` to `last` - 1, whole chunks, of the rows from ... to - 1. Of all rows, they still are
 * to be made those of unsigned values, and of weights that are not stored too large. */
static void multiply(struct native *e, const struct native_layer *y, const uint8_t *u, uint32_t from, uint32_t to, uint32_t first, uint32_t last)
{
    const struct native_sums sums = {at(e->file, y->weights), (int)y->bits, (int)y->in, (int)y->padded, takes_signed(e, y)};
    const uint32_t chunk = 8 * NATIVE_CHUNK / y->bits;
    if (takes_quads(e, y)) {
        multiply_quads(e, y, u, from, to, first, last);
        return;
    }
    list_rows(e, y, u, from, to, takes_all(e, y), sums.is_signed);
    e->set->multiply(&sums, &e->list, e->acc, (int)(first / chunk), (int)(last / chunk));
}

static const int32_t *bias_of(const struct native *e, const struct native_layer *y)
{
    if (takes_quads(e, y) && e->set->takes_int8) return e->signed_bias[y - e->file->layer];
    return at(e->file, takes_signed(e, y) ? y->signed_bias : y->bias);
}

/* How much the sums of 4 and 2 bits are too large, of values with this sum. */
static int32_t excess(const struct native_layer *y, int32_t sum) { return y->bits == 8 ? 0 : (y->bits == 4 ? 8 : 1) * sum; }

/* The sums of a layer whose values get levels of their own. */
static void multiply_levels(struct native *e, const struct native_layer *y, const float *x, float *sums)
{
    const struct native_file *f = e->file;
    int zero;
    const float scale = to_levels(x, y->in, e->low, &zero);
    e->mode[y - f->layer] = zero ? NATIVE_DENSE : NATIVE_SPARSE; /* of which few are 0, and 0 as a rule many */
    multiply(e, y, e->low, 0, y->in, 0, y->padded);
    const int is_signed = takes_signed(e, y);
    scale_sums((const void *)e->acc, (uint32_t)(zero - 128 * is_signed), at(f, y->signed_bias), scale, at(f, y->multiplier), at(f, y->bias), y->padded, sums);
}

/* apply, of floats. */
static void apply_floats(struct native *e, const struct native_layer *y, const float *x, float *stored)
{
    const struct native_file *f = e->file;
    if (y->widened == NATIVE_DYNAMIC) multiply_levels(e, y, x, stored);
    else {
        const int rows = compact_floats(x, y->in, e->list.row, e->value);
        const struct native_floats sums = {at(f, y->weights), at(f, y->bias), at(f, y->multiplier), e->list.row, e->value, (int)y->bits, (int)y->in, (int)y->padded, rows};
        e->set->multiply_floats(&sums, stored);
    }
    if (y->gamma) normalise_floats(stored, y->out, at(f, y->gamma), at(f, y->beta), e->wide);
    activate_floats(y->activation, stored, y->out, y->slope);
}

/* One result of a layer: stored inputs u[in] to stored results[padded]. */
static void apply(struct native *e, const struct native_layer *y, const uint8_t *u, uint8_t *stored)
{
    if (is_float(y)) {
        apply_floats(e, y, (const void *)u, (void *)stored);
        return;
    }
    multiply(e, y, u, 0, y->in, 0, y->padded);
    finish(e, y, e->acc, bias_of(e, y), excess(y, e->list.sum), 0, y->padded, stored);
}

/* ---- several threads ----------------------------------------------------------------------------------------------- */
/* Outputs of a layer that are cut together: those of whole cache lines of weights. */
static uint32_t cut_of(const struct native_layer *y) { return 8 * NATIVE_LINE / y->bits; }

/* Whether layer i and the next one are computed by several threads. */
static int is_pair(const struct native *e, unsigned i)
{
    const struct native_file *f = e->file;
    const struct native_layer *a = &f->layer[i], *b = a + 1;
    if (i + 1 >= f->layers || is_float(a) || is_conv(a) || is_conv(b) || a->gamma || a->cell || b->cell || i + 1 == f->joins || i + 2 == f->joins) return 0;
    return a->padded / cut_of(a) >= NATIVE_THREADS && (uint64_t)a->in * a->out + (uint64_t)b->in * b->out >= LEAST_WEIGHTS;
}

/* Slice t of the pair that is at work. */
static void compute_slice(struct native *leader, unsigned t)
{
    const struct native_team *team = &leader->team;
    const unsigned i = team->layer;
    const struct native_layer *a = &leader->file->layer[i], *b = a + 1;
    const uint32_t cut = cut_of(a), cuts = (a->padded + cut - 1) / cut;
    const uint32_t first = cuts * t / team->threads * cut, end = cuts * (t + 1) / team->threads * cut;
    const uint32_t last = end < a->padded ? end : a->padded;
    struct native *own = team->slice[t].own;
    uint8_t *between = own->act[1 - i % 2];
    if (t) own->set = leader->set, own->mode[i] = leader->mode[i], own->mode[i + 1] = leader->mode[i + 1];
    multiply(own, a, leader->act[i % 2], 0, a->in, first, last);
    finish(own, a, own->acc + first, bias_of(own, a), excess(a, own->list.sum), first, last - first, between + first);
    multiply(own, b, between, first, last < a->out ? last : a->out, 0, b->padded);
}

/* Layers i and i + 1 of what the buffer i % 2 holds, into the same one. */
static void apply_pair(struct native *e, unsigned i)
{
    struct native_team *team = &e->team;
    const struct native_layer *b = &e->file->layer[i + 1];
    team->layer = i;
    const uint32_t round = __atomic_add_fetch(&team->round, 2, __ATOMIC_SEQ_CST) & ~(uint32_t)STOP;
    wake(team);
    for (unsigned t = 0; t < team->threads; t++)
        if (claims(&team->slice[t], round)) {
            compute_slice(e, t);
            __atomic_store_n(&team->slice[t].done, round, __ATOMIC_RELEASE);
        }
    uint32_t sum = (uint32_t)e->list.sum;
    for (unsigned t = 1; t < team->threads; t++) {
        wait_for(&team->slice[t], round);
        const struct native *own = team->slice[t].own;
        sum += (uint32_t)own->list.sum;
        for (uint32_t k = 0; k < b->padded; k++) e->acc[k] = (int32_t)((uint32_t)e->acc[k] + (uint32_t)own->acc[k]);
    }
    finish(e, b, e->acc, bias_of(e, b), excess(b, (int32_t)sum), 0, b->padded, e->act[i % 2]);
}

int native_team(struct native *e, struct native *const *others, unsigned threads)
{
    int pays = 0;
    for (unsigned i = 0; i < e->file->layers; i++) pays |= is_pair(e, i);
    if (ALONE || !pays || threads < 2 || threads > NATIVE_THREADS) return 0;
    for (unsigned t = 0; t < threads; t++) e->team.slice[t].own = t ? others[t - 1] : e;
    e->team.threads = threads;
    return 1;
}

void native_work(struct native *leader, unsigned t)
{
    struct native_team *team = &leader->team;
    for (uint32_t round = 0; !((round = next_round(team, round)) & STOP);)
        if (claims(&team->slice[t], round)) {
            compute_slice(leader, t);
            __atomic_store_n(&team->slice[t].done, round, __ATOMIC_RELEASE);
        }
}

void native_stop(struct native *leader)
{
    __atomic_fetch_or(&leader->team.round, STOP, __ATOMIC_SEQ_CST);
    wake(&leader->team);
}

/* ---- convolutions, and the way through the layers ------------------------------------------------------------------ */
/* A convolution's results, several windows at once; the last ones are taken twice. */
static void convolve_together(struct native *e, const struct native_layer *y, const uint8_t *u, uint8_t *stored)
{
    const uint32_t rows = positions(y->height, y->side, y->stride), columns = positions(y->width, y->side, y->stride);
    const uint32_t wide = wide_of(y), n = (uint32_t)e->set->windows;
    const size_t line = (size_t)y->width * y->channels, layer = (size_t)(y - e->file->layer);
    const struct native_windows w = {
        .u = u, .low = e->low, .weights = e->quads[layer], .heavy = e->heavy[layer], .windows = (int)n, .side = (int)y->side, .run = (int)run_of(y),
        .quads = (int)quads_of_line(y), .wide = (int)wide, .block = (int)quads_of(y), .line = line, .large = e->large};
    lower(e, y, u, 0, (size_t)count_inputs(y));
    const int32_t *bias = bias_of(e, y);
    uint32_t i = 0, j = 0;
    for (uint32_t done = 0; done < rows * columns; done += n) {
        size_t corner[MOST_WINDOWS];
        for (uint32_t t = 0; t < n; t++) {
            corner[t] = i * y->stride * line + (size_t)j * y->stride * y->channels;
            if (j + 1 < columns) j++;
            else if (i + 1 < rows) i++, j = 0;
        }
        e->set->convolve(&w, corner, e->acc);
        for (uint32_t t = 0; t < n && done + t < rows * columns; t++, stored += y->out) finish(e, y, e->acc + t * wide, bias, 0, 0, wide, stored);
    }
}

static void convolve(struct native *e, const struct native_layer *y, const uint8_t *u, uint8_t *stored)
{
    if (takes_quads(e, y)) {
        convolve_together(e, y, u, stored);
        return;
    }
    const uint32_t rows = positions(y->height, y->side, y->stride), columns = positions(y->width, y->side, y->stride);
    const size_t size = size_of(y), pixel = y->channels * size, run = y->side * pixel, line = y->width * pixel;
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < columns; j++) {
            const uint8_t *corner = u + (size_t)i * y->stride * line + (size_t)j * y->stride * pixel;
            for (uint32_t k = 0; k < y->side; k++) memcpy(e->window + k * run, corner + k * line, run);
            apply(e, y, e->window, stored);
            stored += y->out * size;
        }
}

/* Elements from ... to - 1 of an observation; of floats only normalised. */
static void quantize(struct native *e, const float *observation, uint32_t from, uint32_t to, float scale, int zero, int base, uint8_t *stored)
{
    const struct native_file *f = e->file;
    const int each = f->normaliser != 1;
    const uint32_t k = each ? from : 0;
    const struct native_input input = {
        (const float *)at(f, f->mean) + k, (const float *)at(f, f->inverse) + k, (const float *)at(f, f->lowest) + k,
        (const float *)at(f, f->highest) + k, each, scale, zero, base};
    if (!is_float(f->layer)) e->set->quantize(&input, observation + from, (int)(to - from), stored);
    else for (uint32_t i = 0; from + i < to; i++) {
        const uint32_t j = each ? i : 0;
        ((float *)(void *)stored)[i] = normalised(observation[from + i], input.mean[j], input.inverse[j], input.lowest[j], input.highest[j]);
    }
}

/* Layer i of a hidden state: the gates' first half is what the buffer i % 2 holds, its results go into the other one. */
static void remember(struct native *e, const float *observation, unsigned i)
{
    const struct native_file *f = e->file;
    const struct native_layer *y = &f->layer[i], *fed = y - 1;
    const uint32_t n = units(y);
    uint8_t *stored = e->act[1 - i % 2];
    uint32_t before = 0;
    for (const struct native_layer *z = f->layer; z < y; z++) before += state_of(z);
    const float *state = observation + f->observation + before;
    float *next = e->next + before;
    if (is_float(y)) {
        apply(e, y, (const void *)state, stored);
        memcpy(e->gates[0], e->act[i % 2], 4 * (size_t)y->out);
        (y->cell == NATIVE_GRU ? gru : lstm)(n, e->gates[0], (const void *)stored, state, next);
        memcpy(stored, next, 4 * (size_t)n);
        return;
    }
    for (uint32_t k = 0; k < n; k++) e->hidden[k] = (uint8_t)(limited(rounded(state[k] / y->norm_scale) + y->norm_zero, -128, 127) + 128);
    apply(e, y, e->hidden, stored);
    widened(e->act[i % 2], y->out, fed->scale, fed->zero, e->gates[0]);
    widened(stored, y->out, y->scale, y->zero, e->gates[1]);
    (y->cell == NATIVE_GRU ? gru : lstm)(n, e->gates[0], e->gates[1], state, next);
    for (uint32_t k = 0; k < n; k++) stored[k] = (uint8_t)(limited(rounded(next[k] / y->norm_scale) + y->norm_zero, y->norm_low, 127) - y->base);
}

/* Layer i of what the buffer i % 2 holds, into the other one; behind an image's last convolution, with the vector. */
static void step(struct native *e, const float *observation, unsigned i)
{
    const struct native_file *f = e->file;
    const struct native_layer *y = &f->layer[i];
    if (y->cell) {
        remember(e, observation, i);
        return;
    }
    (is_conv(y) ? convolve : apply)(e, y, e->act[i % 2], e->act[1 - i % 2]);
    if (i + 1 == f->joins)
        quantize(e, observation, f->observation - f->vector, f->observation, f->vector_scale, f->vector_zero, f->vector_base, e->act[1 - i % 2] + size_of(y) * results(y));
}

/* The stored results behind this many layers; which of the two buffers holds them. */
static int run(struct native *e, const float *observation, unsigned layers)
{
    const struct native_file *f = e->file;
    quantize(e, observation, 0, f->observation - f->vector, f->scale, f->zero, f->base, e->act[0]);
    for (unsigned i = 0; i < layers; i++)
        if (e->team.threads && i + 2 <= layers && is_pair(e, i)) apply_pair(e, i++);
        else step(e, observation, i);
    return layers % 2;
}

void native_repeat(struct native *e, const float *observation, unsigned layer, unsigned times)
{
    if (layer < e->file->layers)
        while (times--) step(e, observation, layer);
}

int native_decide(struct native *e, const float *observation, float *outputs)
{
    const struct native_file *f = e->file;
    const uint8_t *stored = e->act[run(e, observation, f->layers)];
    const float *head = f->head ? at(f, f->head) : 0;
    memcpy(outputs + f->outputs, e->next, 4 * (size_t)f->state);
    if (is_float(f->layer)) return decide_floats((const void *)stored, f->outputs, head, outputs);
    int best = 0;
    for (uint32_t i = 0; i < f->outputs; i++) {
        outputs[i] = head ? head[256 * i + stored[i]] : f->output_scale * (float)(stored[i] - 128 - f->output_zero);
        if (stored[i] > stored[best]) best = (int)i;
    }
    return head ? 0 : best;
}

int native_has_moved(const struct native *e, const float *observation)
{
    const struct native_file *f = e->file;
    const float *mean = at(f, f->mean), *inverse = at(f, f->inverse);
    if (f->normaliser != f->observation) return 0;
    for (uint32_t i = 0; i < f->normaliser; i++) {
        const float change = observation[i] - mean[i];
        const float least = 0x1p-23f * mean[i];
        if (inverse[i] < 2e-30f && (change < 0 ? -change : change) > (least < 0 ? -least : least)) return 1;
    }
    return 0;
}

size_t native_levels(struct native *e, const float *observation, unsigned layers, int8_t *levels, size_t room)
{
    const struct native_file *f = e->file;
    if (layers > f->layers) return 0;
    const uint8_t *stored = e->act[run(e, observation, layers)];
    if (is_float(f->layer)) return 0;
    const struct native_layer *y = layers ? &f->layer[layers - 1] : 0;
    const size_t count = y ? (size_t)results(y) + (layers == f->joins ? f->vector : 0) : f->observation - f->vector;
    const int base = y ? y->base : f->base;
    for (size_t i = 0; i < count && i < room; i++) levels[i] = (int8_t)(stored[i] + base);
    return count;
}

/* ---- choices ------------------------------------------------------------------------------------------------------- */
unsigned native_layers(const struct native *e) { return e->file->layers; }

enum native_mode native_mode(const struct native *e, unsigned layer) { return layer < e->file->layers ? (enum native_mode)e->mode[layer] : NATIVE_DENSE; }

void native_set_mode(struct native *e, unsigned layer, enum native_mode mode)
{
    if (layer < e->file->layers) e->mode[layer] = (uint8_t)mode;
}

const char *native_kernels(unsigned number)
{
    const struct native_kernel_set *set = set_of(number);
    return set ? set->name : 0;
}

int native_use(struct native *e, const char *kernels)
{
    const struct native_kernel_set *set;
    for (unsigned i = 0; (set = set_of(i)); i++) {
        const char *a = set->name, *b = kernels;
        while (*a && *a == *b) a++, b++;
        if (*a == *b) {
            e->set = set;
            return 1;
        }
    }
    return 0;
}
