/* The artifact as it lies in the file, little endian. device/engine/FORMAT.md describes every field; convert/native
 * writes it. Offsets are counted from the file's start, in bytes, and are multiples of NATIVE_LINE. */
#ifndef NATIVE_FORMAT_H
#define NATIVE_FORMAT_H
#include <stdint.h>
#include "activations.h"

enum {
    NATIVE_VERSION = 1,
    NATIVE_LINE = 64,               /* bytes of a cache line: weights of a row lie in whole ones */
    NATIVE_CHUNK = 16,              /* bytes: the least that a row of integers has; floats of it */
    NATIVE_BLOCK = 64,              /* outputs of a block of floats */
    NATIVE_LARGEST_IN = 65535,      /* rows of a layer */
    NATIVE_LARGEST_ELEMENTS = 1 << 24 /* of an observation, an image, or a row of weights */
};

struct native_layer {               /* 128 bytes */
    uint32_t bits;                  /* 2, 4 or 8: of a stored weight; 16 or 32 of floats */
    uint32_t in, out, padded;       /* rows of weights, outputs, and outputs with those that only fill the last chunk */
    uint32_t weights, bias, multiplier; /* offsets: rows; int32[padded], float[padded] of floats; float[padded], 0 of floats' own weights */
    uint32_t signed_bias;           /* offset of int32[padded], the bias where values less 128 are multiplied; or 0 */
    uint32_t table;                 /* offset of int8[256], a level for each level -128 ... 127; or 0 */
    uint32_t gamma, beta;           /* offsets of float[out] of a layer normalisation; or both 0 */
    int32_t zero, low;              /* q = clip(rint(sum * multiplier) + zero, low, 127) */
    int32_t base;                   /* what is stored of a result for the next layer is its level less this, 0 ... 255 */
    uint32_t height, width, channels; /* of the image that a convolution takes; all 0 of a dense layer */
    uint32_t side, stride;          /* of a convolution */
    uint32_t activation;            /* behind a normalisation, of floats behind any layer: enum native_activation */
    float scale;                    /* of the levels that the sums become: what a normalisation is fed */
    float norm_scale;               /* of its result */
    int32_t norm_zero, norm_low;
    float slope;                    /* of a LeakyReLU behind it */
    uint32_t dense;                 /* 1: all rows are multiplied, unless the device measured that it is slower */
    uint32_t cell;                  /* enum native_cell: the layer takes a hidden state; the sums before it are the gates' other half */
    uint32_t widened;               /* enum native_widening, of 4 or 8 bits in a file of floats: sums are multiplied by `multiplier` */
    uint32_t pad[4];
};

enum native_widening {
    NATIVE_LEVELS,
    NATIVE_WIDENED,                 /* weights are multiplied by floats */
    NATIVE_DYNAMIC                  /* values become levels of their own scale in each decision; signed_bias: sums of weights */
};

enum native_cell { NATIVE_FEEDS_FORWARD, NATIVE_GRU, NATIVE_LSTM };

#define NATIVE_ACTIVATION(number, name, f) name = number,
enum native_activation { EACH_ACTIVATION(NATIVE_ACTIVATION) NATIVE_ACTIVATIONS };

struct native_file {                /* 128 bytes, the layers behind it */
    char magic[8];                  /* "QPNATIVE" */
    uint32_t version, bytes;        /* bytes: of the whole file */
    uint32_t layers, outputs;
    uint32_t observation, vector;   /* floats of an observation without states; of the vector behind an image */
    uint32_t joins;                 /* the layer behind which that vector joins the results, counted from 1; or 0 */
    uint32_t normaliser;            /* elements of the four arrays: 1 or observation */
    uint32_t mean, inverse, lowest, highest; /* offsets of float[normaliser] */
    uint32_t head;                  /* offset of float[outputs][256], an action for each level; of floats float[4][outputs], */
                                    /* lowest, highest, gain, offset; 0: outputs are compared */
    float scale;                    /* of the first layer's levels */
    int32_t zero, base;
    float vector_scale;             /* of the vector's levels */
    int32_t vector_zero, vector_base;
    float output_scale;             /* of the last layer's levels */
    int32_t output_zero;
    uint32_t state;                 /* floats that stand behind an observation, and the next ones behind the outputs */
    uint32_t pad[8];
    struct native_layer layer[];
};
_Static_assert(sizeof(struct native_file) == 128 && sizeof(struct native_layer) == 128, "as in the file");
#endif
