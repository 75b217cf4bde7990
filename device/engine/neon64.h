/* The three inner loops of AArch64, whole blocks of 64 bytes a row. In order for a core in order: a row's bytes are
 * loaded while the row before is multiplied. Every group has an even number of rows; the list is padded behind. */
#define STR_(x) #x
#define STR(x) STR_(x)
#define S1(d, a, w, v) #a " v" #d ".8h, v" #w ".8b, v" #v ".8b\n"
#define S2(d, a, w, v) #a "2 v" #d ".8h, v" #w ".16b, v" #v ".16b\n"
/* the row after the next one: its address in x9, its value in vN; prefetch of the row AHEAD */
#define NEXT(vn) "ldrh w9, [%[row]], #2\n ldrh w10, [%[row], #2*" STR(AHEAD) "]\n ld1r {v" #vn ".16b}, [%[val]], #1\n" \
                 "add x9, %[w], x9, lsl #6\n add x10, %[w], x10, lsl #6\n prfm pldl1keep, [x10]\n"
/* a row is multiplied by v while the next one, at x9, is loaded */
#define ROW8(op, v, vn) S1(0, op, 8, v) S2(1, op, 8, v) S1(2, op, 9, v) S2(3, op, 9, v) "ldp q8, q9, [x9]\n" \
    S1(4, op, 10, v) S2(5, op, 10, v) S1(6, op, 11, v) S2(7, op, 11, v) "ldp q10, q11, [x9, #32]\n" NEXT(v)
#define WIDE(a, b, s) "saddw v" #a ".4s, v" #a ".4s, v" #s ".4h\n saddw2 v" #b ".4s, v" #b ".4s, v" #s ".8h\n"
#define FIRST(loads) "ldrh w9, [%[row]], #2\n ld1r {v12.16b}, [%[val]], #1\n add x9, %[w], x9, lsl #6\n" loads \
    "ldrh w9, [%[row]], #2\n ld1r {v13.16b}, [%[val]], #1\n add x9, %[w], x9, lsl #6\n"
#define CLOBBER "x9", "x10", "memory", "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", \
    "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31"

__attribute__((noinline)) static void block8(const uint8_t *w, const struct native_list *l, int32_t *acc)
{
    const uint16_t *row = l->row, *count = l->count; const uint8_t *val = l->value; int groups = l->groups, n;
    if (groups == 0) { memset(acc, 0, 256); return; }
    __asm__ volatile(
        "movi v16.4s, #0\n movi v17.4s, #0\n movi v18.4s, #0\n movi v19.4s, #0\n movi v20.4s, #0\n movi v21.4s, #0\n movi v22.4s, #0\n"
        "movi v23.4s, #0\n movi v24.4s, #0\n movi v25.4s, #0\n movi v26.4s, #0\n movi v27.4s, #0\n movi v28.4s, #0\n movi v29.4s, #0\n"
        "movi v30.4s, #0\n movi v31.4s, #0\n"
        FIRST("ldp q8, q9, [x9]\n ldp q10, q11, [x9, #32]\n")
        "1: ldrh %w[n], [%[count]], #2\n"
        ROW8(smull, 12, 13) ROW8(smlal, 13, 12)
        "subs %w[n], %w[n], #2\n b.eq 3f\n"
        ".p2align 4\n"
        "2:\n" ROW8(smlal, 12, 13) ROW8(smlal, 13, 12)
        "subs %w[n], %w[n], #2\n b.ne 2b\n"
        "3:\n" WIDE(16, 17, 0) WIDE(18, 19, 1) WIDE(20, 21, 2) WIDE(22, 23, 3) WIDE(24, 25, 4) WIDE(26, 27, 5) WIDE(28, 29, 6) WIDE(30, 31, 7)
        "subs %w[g], %w[g], #1\n b.ne 1b\n"
        "stp q16, q17, [%[acc]]\n stp q18, q19, [%[acc], #32]\n stp q20, q21, [%[acc], #64]\n stp q22, q23, [%[acc], #96]\n"
        "stp q24, q25, [%[acc], #128]\n stp q26, q27, [%[acc], #160]\n stp q28, q29, [%[acc], #192]\n stp q30, q31, [%[acc], #224]\n"
        : [row] "+r"(row), [val] "+r"(val), [count] "+r"(count), [g] "+r"(groups), [n] "=&r"(n) : [w] "r"(w), [acc] "r"(acc) : CLOBBER);
}

#define ZERO16 "movi v16.4s, #0\n movi v17.4s, #0\n movi v18.4s, #0\n movi v19.4s, #0\n movi v20.4s, #0\n movi v21.4s, #0\n movi v22.4s, #0\n" \
        "movi v23.4s, #0\n movi v24.4s, #0\n movi v25.4s, #0\n movi v26.4s, #0\n movi v27.4s, #0\n movi v28.4s, #0\n movi v29.4s, #0\n" \
        "movi v30.4s, #0\n movi v31.4s, #0\n"
#define NIBBLES(lo, hi, c) "and v" #lo ".16b, v" #c ".16b, v14.16b\n ushr v" #hi ".16b, v" #c ".16b, #4\n"
#define M4(lo, hi, a, b, d, e, v) S1(a, umlal, lo, v) S2(b, umlal, lo, v) S1(d, umlal, hi, v) S2(e, umlal, hi, v)
/* v4, v5 hold the first nibbles of the row at the start, and the next one's at the end */
#define ROW4(v, vn) NIBBLES(6, 7, 1) NIBBLES(8, 9, 2) "ldp q0, q1, [x9]\n" M4(4, 5, 16, 17, 18, 19, v) NIBBLES(10, 11, 3) "ldp q2, q3, [x9, #32]\n" \
    M4(6, 7, 20, 21, 22, 23, v) NIBBLES(4, 5, 0) M4(8, 9, 24, 25, 26, 27, v) M4(10, 11, 28, 29, 30, 31, v) NEXT(v)
/* int32 sums in memory += eight uint16 */
#define ADD(s, off) "ldp q10, q11, [%[acc], #" #off "]\n uaddw v10.4s, v10.4s, v" #s ".4h\n uaddw2 v11.4s, v11.4s, v" #s ".8h\n stp q10, q11, [%[acc], #" #off "]\n"
#define ADDALL ADD(16, 0) ADD(17, 32) ADD(18, 64) ADD(19, 96) ADD(20, 128) ADD(21, 160) ADD(22, 192) ADD(23, 224) \
    ADD(24, 256) ADD(25, 288) ADD(26, 320) ADD(27, 352) ADD(28, 384) ADD(29, 416) ADD(30, 448) ADD(31, 480)

__attribute__((noinline)) static void block4(const uint8_t *w, const struct native_list *l, int32_t *acc)
{
    const uint16_t *row = l->row, *count = l->count; const uint8_t *val = l->value; int groups = l->groups, n;
    memset(acc, 0, 512);
    if (groups == 0) return;
    __asm__ volatile(
        "movi v14.16b, #15\n" FIRST("ldp q0, q1, [x9]\n ldp q2, q3, [x9, #32]\n") NIBBLES(4, 5, 0)
        "1: ldrh %w[n], [%[count]], #2\n" ZERO16
        ".p2align 4\n"
        "2:\n" ROW4(12, 13) ROW4(13, 12)
        "subs %w[n], %w[n], #2\n b.ne 2b\n"
        ADDALL
        "subs %w[g], %w[g], #1\n b.ne 1b\n"
        : [row] "+r"(row), [val] "+r"(val), [count] "+r"(count), [g] "+r"(groups), [n] "=&r"(n) : [w] "r"(w), [acc] "r"(acc) : CLOBBER);
}

/* 2 bits: half of a row's 64 bytes, 128 outputs; the second and third weight of a byte stay where they are */
#define CRUMBS(a, b, d, e, c) "and v" #a ".16b, v" #c ".16b, v14.16b\n and v" #b ".16b, v" #c ".16b, v15.16b\n" \
    "and v" #d ".16b, v" #c ".16b, v3.16b\n ushr v" #e ".16b, v" #c ".16b, #6\n"
#define ROW2(v, vn) CRUMBS(8, 9, 10, 11, 1) "ldp q0, q1, [x9]\n" M4(4, 5, 16, 17, 18, 19, v) M4(6, 7, 20, 21, 22, 23, v) CRUMBS(4, 5, 6, 7, 0) \
    M4(8, 9, 24, 25, 26, 27, v) M4(10, 11, 28, 29, 30, 31, v) NEXT(v)
#define SHIFT(s, n) "ushr v" #s ".8h, v" #s ".8h, #" #n "\n"
__attribute__((noinline)) static void half2(const uint8_t *w, const struct native_list *l, int32_t *acc)
{
    const uint16_t *row = l->row, *count = l->count; const uint8_t *val = l->value; int groups = l->groups, n;
    memset(acc, 0, 512);
    if (groups == 0) return;
    __asm__ volatile(
        "movi v14.16b, #3\n movi v15.16b, #12\n movi v3.16b, #48\n" FIRST("ldp q0, q1, [x9]\n") CRUMBS(4, 5, 6, 7, 0)
        "1: ldrh %w[n], [%[count]], #2\n" ZERO16
        ".p2align 4\n"
        "2:\n" ROW2(12, 13) ROW2(13, 12)
        "subs %w[n], %w[n], #2\n b.ne 2b\n"
        SHIFT(18, 2) SHIFT(19, 2) SHIFT(26, 2) SHIFT(27, 2) SHIFT(20, 4) SHIFT(21, 4) SHIFT(28, 4) SHIFT(29, 4)
        ADDALL
        "subs %w[g], %w[g], #1\n b.ne 1b\n"
        : [row] "+r"(row), [val] "+r"(val), [count] "+r"(count), [g] "+r"(groups), [n] "=&r"(n) : [w] "r"(w), [acc] "r"(acc) : CLOBBER);
}
