/* A policy in integers or floats, one observation at a time: observation in, action out. Nothing is allocated behind native_open, and
 * of the C library only memcpy, memset and memcmp are called. */
#ifndef NATIVE_ENGINE_H
#define NATIVE_ENGINE_H
#include <stddef.h>
#include <stdint.h>

enum native_error {                 /* of native_open; native_message puts them in words */
    NATIVE_OK,
    NATIVE_NO_ARTIFACT,
    NATIVE_OTHER_VERSION,
    NATIVE_TRUNCATED,
    NATIVE_BAD_SIZE,
    NATIVE_BAD_OFFSET,
    NATIVE_BAD_LAYER,
    NATIVE_BAD_CHAIN,
    NATIVE_BAD_NUMBER,
    NATIVE_BAD_PADDING,
    NATIVE_SMALL_MEMORY,
    NATIVE_LARGE_NEED
};

enum native_mode {                  /* of a layer: all rows of weights, or those whose value is not zero; of floats it is these */
    NATIVE_DENSE,
    NATIVE_SPARSE
};

struct native;                      /* lies at the start of the caller's memory */

/* Bytes of memory that an artifact needs, 0 if it is refused. */
size_t native_memory(const void *file, size_t bytes);
/* Check an artifact and prepare it. The file must lie at a multiple of 64 bytes, as must the memory, and stay there. */
enum native_error native_open(void *memory, size_t size, const void *file, size_t bytes);
const char *native_message(enum native_error);

/* One decision: float[observation + state] to float[outputs + state], logits or the action's elements, and behind them
 * what a recurrent policy is given with the next observation. The index of the first largest logit, 0 of a continuous
 * policy. */
int native_decide(struct native *, const float *observation, float *outputs);
/* Whether an element moved that never did in training: policy/spec.py, STILL_SCALE and STILL_SHARE. */
int native_has_moved(const struct native *, const float *observation);
/* The levels behind the first `layers` layers, 0: the input's, at most `room` of them; how many there are. None of floats. */
size_t native_levels(struct native *, const float *observation, unsigned layers, int8_t *levels, size_t room);
/* One layer, several times, of what the layers before it made of this observation: native_levels(..., layer, ...), or
 * this function of the layer before, must have come just before. For a caller with a clock. */
void native_repeat(struct native *, const float *observation, unsigned layer, unsigned times);

enum { NATIVE_THREADS = 4 };        /* at most, with the one that decides */
/* Let this many threads decide together, once, where it pays: 0 if no layers of this artifact are large enough, and then
 * nobody is to call native_work. The others are engines of the same artifact in memories of their own, threads - 1 of
 * them, whose buffers are used. The result is the same to the bit, as are all functions above. */
int native_team(struct native *, struct native *const *others, unsigned threads);
/* Help until native_stop, as thread 1, 2 or 3. All memories must stay until it returns. */
void native_work(struct native *, unsigned thread);
/* Send the helpers home, at any time; decisions are then made without them. */
void native_stop(struct native *);

unsigned native_layers(const struct native *);
enum native_mode native_mode(const struct native *, unsigned layer);
void native_set_mode(struct native *, unsigned layer, enum native_mode);
/* Sets of kernels that this processor can run, the fastest first; "plain" is the last of them. */
const char *native_kernels(unsigned number);
int native_use(struct native *, const char *kernels); /* 0 if there is no such set here */
#endif
