/* Runs the network that weights.bin describes: a table of tensors, a table of operators, and their numbers.

   Planes are cut into 4 x 4 tiles, one for each of 16 lanes: a vector holds the same place of all tiles. Around each
   tile its neighbours' edges are stored too, so that whatever a convolution reads is one aligned vector, also with a
   stride.
   For each output channel and block of places, each weight that is not zero is multiplied into a register for each
   place; input channels come in segments that fit into the fastest cache. Bias, residual and ReLU end the same pass.

   Vectors are GCC's and Clang's vector extensions: AVX-512, AVX, or four floats (SSE2, NEON), by how this is built.
   Everything in the weights is checked by model_open: damaged or forged, they are refused, never read outside. */
#include "model.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef MODEL_THREADS
#include <pthread.h>
#include <stdatomic.h>
#endif

#define LANES 16 /* 4 x 4 tiles */
#define SIDE 4
#define AT_A_TIME 8 /* channels whose tiles get their edges */
#define MOST_FOUND 256 /* numbers that are looked through at a time for those that are not zero */

#if defined(__AVX512F__)
#include <immintrin.h>
#define WIDTH 16
#define MOST_PLACES 16
#elif defined(__AVX__)
#define WIDTH 8
#define MOST_PLACES 4
#elif defined(__aarch64__)
#define WIDTH 4
#define MOST_PLACES 4
#else
#define WIDTH 4
#define MOST_PLACES 2
#endif
#define MOST_POOLED (MOST_PLACES < 4 ? 4 : MOST_PLACES)
#define PIECES (LANES / WIDTH) /* registers a place */
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vec __attribute__((vector_size(WIDTH * 4), may_alias));
typedef int32_t bits __attribute__((vector_size(WIDTH * 4), may_alias));
typedef float loose __attribute__((vector_size(WIDTH * 4), may_alias, aligned(4)));
typedef float four __attribute__((vector_size(16), may_alias, aligned(4)));
#if WIDTH < 16
typedef float row4 __attribute__((vector_size(16), may_alias)); /* a row of tiles */
#endif

enum { MAGIC = 0x4f575043, VERSION = 2, HEADER = 16 };
#define NONE UINT32_MAX
enum { FLAT = 0, TILED = 1 };
enum { GATHER, CONVOLVE, AFFINE, MAXIMUM, AVERAGE, MEAN, LINEAR, DENSE, ADD, SCATTER, KINDS };
enum { FIRST = 1, LAST = 2 };
enum { NOTHING, ZERO, LOWEST };

typedef struct {
    uint32_t kind, channels, height, width;
    uint32_t step_y, step_x;      /* rows and columns from a tile to the next */
    uint32_t top, left;           /* rows and columns of neighbours before a tile's own */
    uint32_t tall, wide;          /* rows and columns stored of a tile */
    uint32_t vectors;             /* of a channel: tall x wide, or one more, for an odd number spreads over the cache */
    uint32_t offset;              /* in the workspace, in vectors of 16 */
    uint32_t outside;             /* what is read around the image: nothing, 0, or -infinity */
} shape;

typedef struct {
    uint32_t kind, input, output, residual, relu;
    uint32_t stride_y, stride_x, kernel_y, kernel_x;
    uint32_t base;                /* where in an input plane the first place begins to read, in vectors */
    uint32_t segments, segment_count;
    uint32_t counts, offsets, weights, nonzeros; /* arrays: where they are, in units of 64 bytes */
    uint32_t scale, shift;        /* bias is a shift; NONE if there is none */
    uint32_t pooled;              /* whether a convolution ends with the largest of each two by two places */
    uint32_t spare;
} operator;

typedef struct { uint32_t input, first_output, outputs, flags; } segment;
typedef struct { uint32_t eight, single; } start;
typedef struct {                  /* a vector of neighbours: which, of which, and from how many tiles away */
    uint32_t to, from;
    int32_t down, right;
    int32_t lanes[LANES];         /* the same for each lane: from which one, -1 for none */
} edge;
typedef struct { uint32_t place; int32_t keep[LANES]; } cut;      /* a place that is outside the image in some tiles */

typedef struct {
    shape s;
    size_t plane, floats;         /* floats of a channel, and of all */
    edge *edges;
    cut *cuts;
    size_t edge_count, cut_count;
} tensor;

typedef struct {
    operator o;
    const float *weights, *scale, *shift;
    const uint16_t *counts, *offsets;
    const segment *segments;
    const uint16_t *eights;       /* of SCATTER: eight outputs each, from 8 times the place on */
    const float *eight_weights;
    start *starts;                /* of SCATTER: the first eight and weight of each input, and where the last ends */
    int32_t *table;               /* of GATHER: from where each float of a plane comes, -1 for none */
} step;

struct model {
    tensor *tensors;
    step *steps;
    uint32_t tensor_count, step_count, output;
    size_t workspace;             /* floats */
    model_shape shape;
};

typedef struct { uint32_t from, to; } range;

typedef struct {
    const model *net;
    float *workspace;
    const float *image;
    float *logits;
    int part, parts;              /* which of how many threads this is */
} place_of_work;

static range share(const place_of_work *at, uint32_t count)
{
    uint64_t part = (uint64_t)at->part, parts = (uint64_t)at->parts;
    return (range){(uint32_t)(count * part / parts), (uint32_t)(count * (part + 1) / parts)};
}

static const float *input_of(const place_of_work *at, uint32_t index)
{
    return index ? at->workspace + (size_t)at->net->tensors[index].s.offset * LANES : at->image;
}

static float *output_of(const place_of_work *at, uint32_t index)
{
    return index == at->net->output ? at->logits : at->workspace + (size_t)at->net->tensors[index].s.offset * LANES;
}

/* The floats that a row takes in the workspace. */
static size_t whole_vectors(size_t floats) { return (floats + LANES - 1) / LANES * LANES; }

/* The first place of a tile's own rows, in a channel. */
static size_t own_row(const tensor *t, uint32_t channel, uint32_t y)
{
    return channel * t->plane + ((t->s.top + y) * (size_t)t->s.wide + t->s.left) * LANES;
}

INLINE vec all(float value) { return value - (vec){0}; }
INLINE vec positive(vec x) { return (vec)((bits)x & ~(bits)(x < all(0))); } /* NaN stays */
INLINE vec larger(vec a, vec b) /* NaN stays */
{
    const bits second = (bits)(b > a) | (bits)(b != b);
    return (vec)(((bits)b & second) | ((bits)a & ~second));
}
INLINE float positive1(float x) { return x < 0 ? 0 : x; }

/* ---- The edges of tiles ---- */

#if WIDTH == 16
static void shift_edges(float *planes, size_t plane, uint32_t channels, const edge *e, float fill)
{
    const __m512i order = _mm512_loadu_si512(e->lanes);
    const __mmask16 inside = _mm512_cmpge_epi32_mask(order, _mm512_setzero_si512());
    const __m512 outside = _mm512_set1_ps(fill);
    for (uint32_t c = 0; c < channels; c++, planes += plane) {
        const __m512 from = _mm512_load_ps(planes + (size_t)e->from * LANES);
        _mm512_store_ps(planes + (size_t)e->to * LANES, _mm512_mask_permutexvar_ps(outside, inside, order, from));
    }
}
#else
static void shift_edges(float *planes, size_t plane, uint32_t channels, const edge *e, float fill)
{
    const row4 outside = {fill, fill, fill, fill};
    for (uint32_t c = 0; c < channels; c++, planes += plane) {
        const row4 *from = (const row4 *)(planes + (size_t)e->from * LANES);
        row4 *to = (row4 *)(planes + (size_t)e->to * LANES);
        for (int r = 0; r < SIDE; r++) {
            int source = r + e->down;
            row4 row = source >= 0 && source < SIDE ? from[source] : outside;
            switch (e->right) {
            case 0: break;
            case 1: row = (row4){row[1], row[2], row[3], fill}; break;
            case 2: row = (row4){row[2], row[3], fill, fill}; break;
            case 3: row = (row4){row[3], fill, fill, fill}; break;
            case -1: row = (row4){fill, row[0], row[1], row[2]}; break;
            case -2: row = (row4){fill, fill, row[0], row[1]}; break;
            case -3: row = (row4){fill, fill, fill, row[0]}; break;
            default: row = outside;
            }
            to[r] = row;
        }
    }
}
#endif

/* After some channels of a tiled tensor are written: clear what is outside the image, and copy the tiles' edges. A few
   channels at a time, which stay in the fastest cache. */
static void finish(const tensor *t, float *planes, range channels)
{
    const float fill = t->s.outside == LOWEST ? -__builtin_inff() : 0;
    for (uint32_t first = channels.from, count; first < channels.to; first += count) {
        float *few = planes + first * t->plane;
        count = channels.to - first < AT_A_TIME ? channels.to - first : AT_A_TIME;
        for (size_t i = 0; i < t->cut_count; i++)
            for (int k = 0; k < PIECES; k++) {
                float *p = few + (size_t)t->cuts[i].place * LANES + k * WIDTH;
                bits keep;
                memcpy(&keep, t->cuts[i].keep + k * WIDTH, sizeof keep);
                const bits other = (bits)all(fill) & ~keep;
                for (uint32_t c = 0; c < count; c++, p += t->plane) *(bits *)p = (*(bits *)p & keep) | other;
            }
        for (size_t i = 0; i < t->edge_count; i++) shift_edges(few, t->plane, count, t->edges + i, fill);
    }
}

/* ---- Convolution ---- */

typedef struct {
    const float *input;           /* of the block's first place, in the segment's first channel */
    size_t input_row, input_step; /* floats to the next place below, and to the right */
    float *output;                /* of the block's first place, in the first output channel */
    size_t output_row, output_plane;
    const float *residual;        /* likewise, or NULL */
    size_t residual_row, residual_plane;
    const uint16_t *counts, *offsets;
    const float *weights, *bias;
    uint32_t outputs, first, last, relu;
} block;

/* Compute `rows` x `columns` places of all output channels, from one segment of input channels.
   With few places, several weights go into sums of their own, or the sums' latency would be the speed. */
INLINE void convolve_block(const block *b, const int rows, const int columns, const size_t step, const int pooled)
{
    const int sums = rows * columns * PIECES, sets = sums >= 8 ? 1 : sums >= 4 ? 2 : sums >= 2 ? 4 : 8;
    const uint16_t *offset = b->offsets;
    const float *weight = b->weights;
    if (rows * columns > (pooled ? MOST_POOLED : MOST_PLACES))
        return;
    for (uint32_t o = 0; o < b->outputs; o++) {
        vec sum[16];
        float *output = b->output + o * b->output_plane;
        UNROLL for (int i = 0; i < rows * columns; i++) {
            UNROLL for (int k = 0; k < PIECES; k++)
                sum[i * PIECES + k] = pooled || b->first ? all(b->bias[o])
                    : *(const vec *)(output + (i / columns) * b->output_row + (i % columns) * LANES + k * WIDTH);
        }
        UNROLL for (int i = sums; i < sums * sets; i++) sum[i] = all(0);
        const uint16_t *end = offset + b->counts[o];
        for (; offset + sets <= end; offset += sets, weight += sets) {
            UNROLL for (int set = 0; set < sets; set++) {
                const float *input = b->input + LANES * (size_t)offset[set];
                const vec w = all(weight[set]);
                UNROLL for (int i = 0; i < rows * columns; i++) {
                    UNROLL for (int k = 0; k < PIECES; k++)
                        sum[set * sums + i * PIECES + k] += w *
                            *(const vec *)(input + (i / columns) * b->input_row + (i % columns) * step + k * WIDTH);
                }
            }
        }
        if (sets > 1) {
            for (; offset < end; offset++, weight++) {
                const float *input = b->input + LANES * (size_t)*offset;
                const vec w = all(*weight);
                UNROLL for (int i = 0; i < rows * columns; i++) {
                    UNROLL for (int k = 0; k < PIECES; k++)
                        sum[i * PIECES + k] += w *
                            *(const vec *)(input + (i / columns) * b->input_row + (i % columns) * step + k * WIDTH);
                }
            }
            UNROLL for (int half = sums * sets / 2; half >= sums; half /= 2) {
                UNROLL for (int i = 0; i < half; i++) sum[i] += sum[i + half];
            }
        }
        if (b->last && b->residual) {
            const float *residual = b->residual + o * b->residual_plane;
            UNROLL for (int i = 0; i < rows * columns; i++) {
                UNROLL for (int k = 0; k < PIECES; k++)
                    sum[i * PIECES + k] +=
                        *(const vec *)(residual + (i / columns) * b->residual_row + (i % columns) * LANES + k * WIDTH);
            }
        }
        if (b->last && b->relu) {
            UNROLL for (int i = 0; i < sums; i++) sum[i] = positive(sum[i]);
        }
        if (pooled) { /* the largest of two by two */
            UNROLL for (int i = 0; i < rows * columns / 4; i++) {
                const int corner = i / (columns / 2) * 2 * columns + i % (columns / 2) * 2;
                UNROLL for (int k = 0; k < PIECES; k++)
                    *(vec *)(output + (i / (columns / 2)) * b->output_row + (i % (columns / 2)) * LANES + k * WIDTH) =
                        larger(larger(sum[corner * PIECES + k], sum[(corner + 1) * PIECES + k]),
                               larger(sum[(corner + columns) * PIECES + k], sum[(corner + columns + 1) * PIECES + k]));
            }
            continue;
        }
        UNROLL for (int i = 0; i < rows * columns; i++) {
            UNROLL for (int k = 0; k < PIECES; k++)
                *(vec *)(output + (i / columns) * b->output_row + (i % columns) * LANES + k * WIDTH) =
                    sum[i * PIECES + k];
        }
    }
}

typedef void kernel(const block *);
#define BLOCK(rows, columns)                                                                                    \
    static void convolve_##rows##x##columns(const block *b) { convolve_block(b, rows, columns, LANES, 0); }    \
    static void convolve_##rows##x##columns##_two(const block *b) { convolve_block(b, rows, columns, 2 * LANES, 0); }
#define NAMES(rows, columns) {convolve_##rows##x##columns, convolve_##rows##x##columns##_two}
BLOCK(1, 1) BLOCK(1, 2) BLOCK(1, 3) BLOCK(1, 4) BLOCK(1, 5) BLOCK(1, 6) BLOCK(1, 7) BLOCK(1, 8)
BLOCK(2, 1) BLOCK(2, 2) BLOCK(2, 3) BLOCK(2, 4) BLOCK(2, 5) BLOCK(2, 6) BLOCK(2, 7) BLOCK(2, 8)
BLOCK(4, 1) BLOCK(4, 2) BLOCK(4, 3) BLOCK(4, 4)
static kernel *const KERNELS[3][8][2] = {
    {NAMES(1, 1), NAMES(1, 2), NAMES(1, 3), NAMES(1, 4), NAMES(1, 5), NAMES(1, 6), NAMES(1, 7), NAMES(1, 8)},
    {NAMES(2, 1), NAMES(2, 2), NAMES(2, 3), NAMES(2, 4), NAMES(2, 5), NAMES(2, 6), NAMES(2, 7), NAMES(2, 8)},
    {NAMES(4, 1), NAMES(4, 2), NAMES(4, 3), NAMES(4, 4)},
};
#define POOLED(rows, columns)                                                                                   \
    static void pool_##rows##x##columns(const block *b) { convolve_block(b, rows, columns, LANES, 1); }
POOLED(2, 2) POOLED(2, 4) POOLED(2, 6) POOLED(2, 8) POOLED(4, 2) POOLED(4, 4)
static kernel *const POOLING[2][4] = {{pool_2x2, pool_2x4, pool_2x6, pool_2x8}, {pool_4x2, pool_4x4}};

static uint32_t sum_of(const uint16_t *counts, uint32_t from, uint32_t to)
{
    uint32_t sum = 0;
    for (uint32_t i = from; i < to; i++) sum += counts[i];
    return sum;
}

/* Compute the places of a block for this thread's output channels, segment after segment. */
static void convolve_places(const place_of_work *at, const step *op, block b, kernel *run, range own, size_t in,
                            size_t out, size_t res)
{
    const tensor *to = &at->net->tensors[op->o.output];
    const float *input = input_of(at, op->o.input) + in, *weights = op->weights;
    float *output = output_of(at, op->o.output) + out;
    const float *residual = op->o.residual == NONE ? NULL : input_of(at, op->o.residual) + res;
    const uint16_t *counts = op->counts, *offsets = op->offsets;
    for (uint32_t i = 0; i < op->o.segment_count; i++) {
        const segment *s = op->segments + i;
        uint32_t end = s->first_output + s->outputs;
        uint32_t from = own.from > s->first_output ? own.from : s->first_output, until = own.to < end ? own.to : end;
        uint32_t before = 0, after = 0, mine = 0;
        if (from < until) {
            before = sum_of(counts, 0, from - s->first_output);
            b.input = input + (size_t)s->input * LANES;
            b.output = output + from * to->plane;
            b.residual = residual ? residual + from * b.residual_plane : NULL;
            b.counts = counts + (from - s->first_output), b.offsets = offsets + before, b.weights = weights + before;
            b.bias = op->shift + from;
            b.outputs = until - from, b.first = s->flags & FIRST, b.last = s->flags & LAST;
            run(&b);
            mine = sum_of(b.counts, 0, b.outputs), after = sum_of(b.counts, b.outputs, end - from);
        } else {
            after = sum_of(counts, 0, s->outputs);
        }
        counts += s->outputs, offsets += before + mine + after, weights += before + mine + after;
    }
}

static void convolve(const place_of_work *at, const step *op)
{
    const tensor *in = &at->net->tensors[op->o.input], *out = &at->net->tensors[op->o.output];
    const tensor *res = op->o.residual == NONE ? NULL : &at->net->tensors[op->o.residual];
    const range own = share(at, out->s.channels);
    const uint32_t stride_y = op->o.stride_y, stride_x = op->o.stride_x;
    if (own.from == own.to)
        return;
    block b = {0};
    b.input_row = (size_t)stride_y * in->s.wide * LANES, b.output_row = (size_t)out->s.wide * LANES;
    b.output_plane = out->plane, b.relu = op->o.relu;
    if (res)
        b.residual_row = (size_t)res->s.wide * LANES, b.residual_plane = res->plane;
    const uint32_t pooled = op->o.pooled, each = pooled ? 2 : 1, most = pooled ? MOST_POOLED : MOST_PLACES;
    const uint32_t high = each * out->s.step_y, broad = each * out->s.step_x;
    for (uint32_t y = 0, rows; y < high; y += rows) {
        rows = each;
        for (uint32_t x = 0, columns; x < broad; x += columns) {
            uint32_t left_x = broad - x, left_y = high - y;
            columns = left_x < 8 ? left_x : 8;
            if (stride_x > 2)
                columns = 1;
            if (columns > most / each)
                columns = most / each;
            if (x == 0) /* the same rows for the whole line of blocks */
                for (uint32_t r = 2; r <= 4; r *= 2)
                    if (r <= left_y && r * columns <= most)
                        rows = r;
            kernel *run = pooled ? POOLING[rows / 4][columns / 2 - 1] : KERNELS[rows / 2][columns - 1][stride_x == 2];
            convolve_places(at, op, b, run, own,
                            (op->o.base + ((size_t)y * stride_y) * in->s.wide + (size_t)x * stride_x) * LANES,
                            own_row(out, 0, y / each) + (size_t)(x / each) * LANES,
                            res ? own_row(res, 0, y) + (size_t)x * LANES : 0);
        }
    }
    finish(out, output_of(at, op->o.output), own);
}

/* ---- The other operators ---- */

/* Lay planes out anew: from the image into tiles, from tiles into a row, from tiles into others. */
static void gather(const place_of_work *at, const step *op)
{
    const tensor *in = &at->net->tensors[op->o.input], *out = &at->net->tensors[op->o.output];
    const range own = share(at, out->s.channels);
    const float *from = input_of(at, op->o.input) + own.from * in->plane;
    float *to = output_of(at, op->o.output) + own.from * out->plane;
    const float fill = out->s.outside == LOWEST ? -__builtin_inff() : 0;
    for (uint32_t c = own.from; c < own.to; c++, from += in->plane, to += out->plane)
        for (size_t i = 0; i < out->plane; i++) to[i] = op->table[i] < 0 ? fill : from[op->table[i]];
}

static void affine(const place_of_work *at, const step *op)
{
    const tensor *in = &at->net->tensors[op->o.input], *out = &at->net->tensors[op->o.output];
    const tensor *res = op->o.residual == NONE ? NULL : &at->net->tensors[op->o.residual];
    const range own = share(at, out->s.channels);
    const float *from = input_of(at, op->o.input), *added = res ? input_of(at, op->o.residual) : NULL;
    float *to = output_of(at, op->o.output);
    for (uint32_t c = own.from; c < own.to; c++) {
        const vec scale = all(op->scale[c]), shift = all(op->shift[c]);
        for (uint32_t y = 0; y < out->s.step_y; y++) {
            const float *f = from + own_row(in, c, y), *a = res ? added + own_row(res, c, y) : NULL;
            float *t = to + own_row(out, c, y);
            for (size_t i = 0; i < (size_t)out->s.step_x * LANES; i += WIDTH) {
                vec value = *(const vec *)(f + i) * scale + shift;
                if (a)
                    value += *(const vec *)(a + i);
                *(vec *)(t + i) = op->o.relu ? positive(value) : value;
            }
        }
    }
    finish(out, to, own);
}

INLINE void pool_planes(const place_of_work *at, const step *op, const uint32_t kernel_y, const uint32_t kernel_x,
                        const int average)
{
    const tensor *in = &at->net->tensors[op->o.input], *out = &at->net->tensors[op->o.output];
    const range own = share(at, out->s.channels);
    const float *from = input_of(at, op->o.input);
    float *to = output_of(at, op->o.output);
    const size_t below = (size_t)in->s.wide * LANES;
    const vec part = all(1 / ((float)kernel_y * (float)kernel_x));
    for (uint32_t c = own.from; c < own.to; c++)
        for (uint32_t y = 0; y < out->s.step_y; y++) {
            const float *f = from + c * in->plane + (op->o.base + (size_t)y * op->o.stride_y * in->s.wide) * LANES;
            float *t = to + own_row(out, c, y);
            for (uint32_t x = 0; x < out->s.step_x * PIECES; x++) {
                const float *corner = f + (size_t)(x / PIECES) * op->o.stride_x * LANES + x % PIECES * WIDTH;
                vec value = *(const vec *)corner;
                for (uint32_t i = 0; i < kernel_y; i++)
                    for (uint32_t j = i ? 0 : 1; j < kernel_x; j++) {
                        const vec next = *(const vec *)(corner + i * below + (size_t)j * LANES);
                        if (average)
                            value += next;
                        else
                            value = larger(value, next);
                    }
                if (average)
                    value *= part;
                *(vec *)(t + (size_t)x * WIDTH) = op->o.relu ? positive(value) : value;
            }
        }
    finish(out, to, own);
}

static void maximum(const place_of_work *at, const step *op)
{
    if (op->o.kernel_y == 2 && op->o.kernel_x == 2)
        pool_planes(at, op, 2, 2, 0);
    else
        pool_planes(at, op, op->o.kernel_y, op->o.kernel_x, 0);
}

static void average(const place_of_work *at, const step *op)
{
    pool_planes(at, op, op->o.kernel_y, op->o.kernel_x, 1);
}

static void mean(const place_of_work *at, const step *op)
{
    const tensor *in = &at->net->tensors[op->o.input];
    const range own = share(at, in->s.channels);
    const float *from = input_of(at, op->o.input);
    float *to = output_of(at, op->o.output);
    for (uint32_t c = own.from; c < own.to; c++) {
        vec sum = all(0);
        for (uint32_t y = 0; y < in->s.step_y; y++) {
            const float *f = from + own_row(in, c, y);
            for (size_t i = 0; i < (size_t)in->s.step_x * LANES; i += WIDTH) sum += *(const vec *)(f + i);
        }
        float total = 0;
        for (int i = 0; i < WIDTH; i++) total += sum[i];
        total /= (float)in->s.height * (float)in->s.width;
        to[c] = op->o.relu ? positive1(total) : total;
    }
}

static void linear(const place_of_work *at, const step *op)
{
    const tensor *out = &at->net->tensors[op->o.output];
    const range own = share(at, (uint32_t)out->floats);
    const float *from = input_of(at, op->o.input), *weight = op->weights;
    const float *added = op->o.residual == NONE ? NULL : input_of(at, op->o.residual);
    const uint16_t *offset = op->offsets, *count = op->counts;
    float *to = output_of(at, op->o.output);
    for (uint32_t i = 0; i < op->o.segment_count; i++) {
        const segment *s = op->segments + i;
        const float *x = from + s->input;
        const uint32_t end = s->first_output + s->outputs;
        for (uint32_t o = s->first_output; o < end; o++, offset += *count, weight += *count, count++) {
            const uint32_t n = *count;
            if (o < own.from || o >= own.to)
                continue;
            float a = s->flags & FIRST ? op->shift[o] : to[o];
            four sums[4] = {{0}, {0}, {0}, {0}};
            uint32_t j = 0;
            for (; j + 16 <= n; j += 16)
                UNROLL for (uint32_t k = 0; k < 4; k++) {
                    const uint16_t *at_x = offset + j + 4 * k;
                    const four from_x = {x[at_x[0]], x[at_x[1]], x[at_x[2]], x[at_x[3]]};
                    sums[k] += *(const four *)(weight + j + 4 * k) * from_x;
                }
            for (; j < n; j++) a += weight[j] * x[offset[j]];
            sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
            a += (sums[0][0] + sums[0][1]) + (sums[0][2] + sums[0][3]);
            if (s->flags & LAST) {
                a += added ? added[o] : 0;
                a = op->o.relu ? positive1(a) : a;
            }
            to[o] = a;
        }
    }
}

/* The places of the numbers that are not zero, of at most MOST_FOUND. */
#if WIDTH == 16
static uint32_t find_nonzeros(const float *x, uint32_t count, uint32_t *found)
{
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i += LANES) {
        const __mmask16 there = (__mmask16)(count - i < LANES ? (1u << (count - i)) - 1 : 0xffff);
        const __m512 values = _mm512_maskz_loadu_ps(there, x + i);
        const __mmask16 keep = _mm512_cmp_ps_mask(values, _mm512_setzero_ps(), _CMP_NEQ_UQ);
        const __m512i places = _mm512_add_epi32(lanes, _mm512_set1_epi32((int)i));
        _mm512_storeu_si512(found + n, _mm512_maskz_compress_epi32(keep, places));
        n += (uint32_t)__builtin_popcount(keep);
    }
    return n;
}
#else
static uint32_t find_nonzeros(const float *x, uint32_t count, uint32_t *found)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++) found[n] = i, n += x[i] != 0;
    return n;
}
#endif

typedef float eight __attribute__((vector_size(32), may_alias, aligned(4)));

/* Add x times the weights of an input to the outputs they are for: eight that lie side by side, or one alone. */
INLINE void add_eights(const uint16_t *place, const uint16_t *end, const float *weight, float x, float *to)
{
    for (; place < end; place++, weight += 8) {
        eight *sums = (eight *)(to + 8 * (size_t)*place);
        *sums += *(const eight *)weight * x;
    }
}

INLINE void add_singles(const uint16_t *output, const uint16_t *end, const float *weight, float x, float *to)
{
    for (; output + 4 <= end; output += 4, weight += 4) { /* four different outputs */
        const four w = *(const four *)weight * x;
        float *a = to + output[0], *b = to + output[1], *c = to + output[2], *d = to + output[3];
        const float sum_a = *a + w[0], sum_b = *b + w[1], sum_c = *c + w[2], sum_d = *d + w[3];
        *a = sum_a, *b = sum_b, *c = sum_c, *d = sum_d;
    }
    for (; output < end; output++, weight++) to[*output] += *weight * x;
}

/* A linear layer after a ReLU: for each input that is not zero, its weights go to the outputs they are for. Eights and
   single weights have sums of their own: a load that is wider than the store before it has to wait. One thread does it
   all: an output's sum must not depend on how many there are. */
static void scatter(const place_of_work *at, const step *op)
{
    const uint32_t inputs = (uint32_t)at->net->tensors[op->o.input].floats;
    const size_t outputs = at->net->tensors[op->o.output].floats;
    const float *from = input_of(at, op->o.input), *weights = op->weights, *eight_weights = op->eight_weights;
    const float *added = op->o.residual == NONE ? NULL : input_of(at, op->o.residual);
    const uint16_t *eights = op->eights, *offsets = op->offsets;
    const start *starts = op->starts;
    float *to = output_of(at, op->o.output), *wide = to + whole_vectors(outputs);
    uint32_t found[MOST_FOUND + LANES];
    if (at->part)
        return;
    memcpy(to, op->shift, outputs * sizeof *to);
    memset(wide, 0, whole_vectors(outputs) * sizeof *wide);
    for (uint32_t first = 0; first < inputs; first += MOST_FOUND) {
        const uint32_t left = inputs - first;
        const uint32_t n = find_nonzeros(from + first, left < MOST_FOUND ? left : MOST_FOUND, found);
        for (uint32_t i = 0; i < n; i++) {
            const start begin = starts[first + found[i]], end = starts[first + found[i] + 1];
            const float x = from[first + found[i]];
            add_eights(eights + begin.eight, eights + end.eight, eight_weights + 8 * (size_t)begin.eight, x, wide);
            add_singles(offsets + begin.single, offsets + end.single, weights + begin.single, x, to);
        }
    }
    for (size_t o = 0; o < outputs; o++) {
        const float value = to[o] + wide[o] + (added ? added[o] : 0);
        to[o] = op->o.relu ? positive1(value) : value;
    }
}

/* A linear layer with few zeros: all weights are stored, row after row. */
static void dense(const place_of_work *at, const step *op)
{
    const size_t inputs = at->net->tensors[op->o.input].floats;
    const range own = share(at, (uint32_t)at->net->tensors[op->o.output].floats);
    const float *from = input_of(at, op->o.input);
    const float *added = op->o.residual == NONE ? NULL : input_of(at, op->o.residual);
    float *to = output_of(at, op->o.output);
    for (uint32_t o = own.from; o < own.to; o++) {
        const float *w = op->weights + o * inputs;
        vec a = all(0), b = all(0), c = all(0), d = all(0);
        size_t i = 0;
        for (; i + 4 * WIDTH <= inputs; i += 4 * WIDTH) {
            a += *(const loose *)(w + i) * *(const loose *)(from + i);
            b += *(const loose *)(w + i + WIDTH) * *(const loose *)(from + i + WIDTH);
            c += *(const loose *)(w + i + 2 * WIDTH) * *(const loose *)(from + i + 2 * WIDTH);
            d += *(const loose *)(w + i + 3 * WIDTH) * *(const loose *)(from + i + 3 * WIDTH);
        }
        float sum = op->shift[o];
        for (; i < inputs; i++) sum += w[i] * from[i];
        a = (a + b) + (c + d);
        for (int k = 0; k < WIDTH; k++) sum += a[k];
        sum += added ? added[o] : 0;
        to[o] = op->o.relu ? positive1(sum) : sum;
    }
}

/* Scale, shift, add and ReLU of rows; a channel is a plane of a row. */
static void add(const place_of_work *at, const step *op)
{
    const tensor *out = &at->net->tensors[op->o.output];
    const range own = share(at, out->s.channels);
    const float *from = input_of(at, op->o.input);
    const float *added = op->o.residual == NONE ? NULL : input_of(at, op->o.residual);
    float *to = output_of(at, op->o.output);
    for (uint32_t c = own.from; c < own.to; c++)
        for (size_t i = c * out->plane; i < (c + 1) * out->plane; i++) {
            float value = from[i] * op->scale[c] + op->shift[c] + (added ? added[i] : 0);
            to[i] = op->o.relu ? positive1(value) : value;
        }
}

typedef void action(const place_of_work *, const step *);
static action *const ACTIONS[KINDS] = {gather, convolve, affine, maximum, average, mean, linear, dense, add, scatter};

/* ---- Opening: nothing of what the weights say is believed ---- */

typedef struct { const unsigned char *bytes; size_t size; const char *why; } source;

static const void *array(source *from, uint32_t where, uint64_t count, size_t size)
{
    uint64_t start = (uint64_t)where * 64;
    if (start > from->size || count > (from->size - start) / size) {
        from->why = "the weights are damaged: an array lies outside of them";
        return NULL;
    }
    return from->bytes + start;
}

static uint64_t checksum(const unsigned char *bytes, size_t size)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < size / 4; i++) {
        uint32_t word;
        memcpy(&word, bytes + 4 * i, 4);
        sum += word * (i * 0x9e3779b97f4a7c15u | 1);
    }
    return sum;
}

/* How many tiles from its own the row or column is that a tile stores at this place. */
static int32_t tiles_away(uint32_t place, uint32_t before, uint32_t step)
{
    return place < before ? -(int32_t)((before - place - 1) / step) - 1 : (int32_t)((place - before) / step);
}

static int tiles_of(tensor *t)
{
    const shape *s = &t->s;
    size_t places = (size_t)s->tall * s->wide;
    t->edges = malloc(places * sizeof *t->edges);
    t->cuts = malloc((size_t)s->step_y * s->step_x * sizeof *t->cuts);
    if (!t->edges || !t->cuts)
        return 0;
    for (uint32_t y = 0; y < s->tall; y++)
        for (uint32_t x = 0; x < s->wide; x++) {
            const int32_t down = tiles_away(y, s->top, s->step_y), right = tiles_away(x, s->left, s->step_x);
            const int32_t from_y = (int32_t)y - (int32_t)s->top - down * (int32_t)s->step_y;
            const int32_t from_x = (int32_t)x - (int32_t)s->left - right * (int32_t)s->step_x;
            if (down || right) {
                uint32_t source = (s->top + (uint32_t)from_y) * s->wide + s->left + (uint32_t)from_x;
                edge *e = &t->edges[t->edge_count++];
                *e = (edge){y * s->wide + x, source, down, right, {0}};
                for (int lane = 0; lane < LANES; lane++) {
                    const int32_t row = lane / SIDE + down, column = lane % SIDE + right;
                    e->lanes[lane] = row >= 0 && row < SIDE && column >= 0 && column < SIDE ? row * SIDE + column : -1;
                }
                continue;
            }
            cut c = {y * s->wide + x, {0}};
            int whole = 1;
            for (int lane = 0; lane < LANES; lane++) {
                int inside = (uint32_t)(lane / SIDE) * s->step_y + (uint32_t)from_y < s->height &&
                             (uint32_t)(lane % SIDE) * s->step_x + (uint32_t)from_x < s->width;
                c.keep[lane] = inside ? -1 : 0;
                whole &= inside;
            }
            if (!whole && s->outside != NOTHING)
                t->cuts[t->cut_count++] = c;
        }
    return 1;
}

static const char *open_tensor(const model *net, tensor *t, uint32_t index)
{
    const shape *s = &t->s;
    const uint32_t most = 1 << 15;
    if (s->kind > TILED || !s->channels || s->channels > 1 << 24 || !s->height || s->height > most || !s->width ||
        s->width > most)
        return "the weights are damaged: a tensor has no size";
    t->plane = (size_t)s->height * s->width;
    if (s->kind == TILED) {
        if (!s->step_y || s->step_y > most || !s->step_x || s->step_x > most || s->tall > most || s->wide > most ||
            s->top > most || s->left > most || s->top + s->step_y > s->tall || s->left + s->step_x > s->wide ||
            s->outside > LOWEST || !index || index == net->output)
            return "the weights are damaged: a tensor's tiles are no tiles";
        if (s->vectors > 1 << 16 || s->vectors < (uint64_t)s->tall * s->wide)
            return "the weights are damaged: a tensor's tiles do not fit";
        t->plane = (size_t)s->vectors * LANES;
    }
    if (t->plane > 1 << 24 || t->plane > ((size_t)1 << 30) / s->channels)
        return "the weights are damaged: a tensor is too large";
    t->floats = t->plane * s->channels;
    const int inside = t->floats <= net->workspace && (size_t)s->offset * LANES <= net->workspace - t->floats;
    if (index && index != net->output && !inside)
        return "the weights are damaged: a tensor lies outside of the workspace";
    return s->kind == TILED && !tiles_of(t) ? "there is no memory" : NULL;
}

/* Where in a plane the pixel is; -1 if it is not stored. */
static int64_t pixel(const shape *s, int64_t y, int64_t x)
{
    if (s->kind == FLAT)
        return y * s->width + x;
    int64_t row = y / s->step_y < SIDE ? y / s->step_y : SIDE - 1;
    int64_t column = x / s->step_x < SIDE ? x / s->step_x : SIDE - 1;
    int64_t below = y - row * s->step_y + s->top, beside = x - column * s->step_x + s->left;
    if (below >= s->tall || beside >= s->wide)
        return -1;
    return (below * s->wide + beside) * LANES + row * SIDE + column;
}

static const char *open_gather(step *op, const tensor *in, const tensor *out)
{
    const shape *from = &in->s, *to = &out->s;
    if (from->channels != to->channels || from->height != to->height || from->width != to->width)
        return "the weights are damaged: a tensor changes its size";
    op->table = malloc(out->plane * sizeof *op->table);
    if (!op->table)
        return "there is no memory";
    for (size_t i = 0; i < out->plane; i++) {
        int64_t y = (int64_t)i / to->width, x = (int64_t)i % to->width;
        if (to->kind == TILED) {
            int64_t place = (int64_t)i / LANES, lane = (int64_t)i % LANES; /* beyond the last row: not read */
            y = lane / SIDE * to->step_y + place / to->wide - to->top;
            x = lane % SIDE * to->step_x + place % to->wide - to->left;
        }
        int inside = y >= 0 && y < to->height && x >= 0 && x < to->width;
        int64_t where = inside ? pixel(from, y, x) : -1;
        if (inside && where < 0)
            return "the weights are damaged: a pixel is not stored";
        op->table[i] = (int32_t)where;
    }
    return NULL;
}

/* Check that every read of places that are `reach` vectors from the first stays in the input. */
static int stays_inside(const operator *o, const tensor *in, const tensor *out, uint64_t reach)
{
    const uint64_t most = 1 << 15;
    if (in->s.kind != TILED || out->s.kind != TILED)
        return 0;
    if (!o->stride_y || o->stride_y > most || !o->stride_x || o->stride_x > most)
        return 0;
    const uint64_t each = o->pooled ? 2 : 1;
    const uint64_t below = (each * out->s.step_y - 1) * o->stride_y * in->s.wide;
    const uint64_t beside = (each * out->s.step_x - 1) * o->stride_x;
    return o->base + below + beside + reach < in->floats / LANES;
}

static const char *open_nonzeros(source *from, step *op, const tensor *in, const tensor *out)
{
    const char *const damaged = "the weights are damaged: a weight is of no pixel";
    const operator *o = &op->o;
    const int tiled = o->kind == CONVOLVE;
    const uint64_t outputs = tiled ? out->s.channels : out->floats;
    uint64_t counts = 0, total = 0, done = 0;
    if (!(op->segments = array(from, o->segments, o->segment_count, sizeof *op->segments)))
        return from->why;
    for (uint32_t i = 0; i < o->segment_count; i++) {
        const segment *s = op->segments + i;
        if (s->first_output > outputs || s->outputs > outputs - s->first_output)
            return damaged;
        if (o->pooled && s->flags != (FIRST | LAST))
            return damaged;
        counts += s->outputs;
        done += s->flags & FIRST ? s->outputs : 0;
    }
    op->counts = array(from, o->counts, counts, sizeof *op->counts);
    op->offsets = array(from, o->offsets, o->nonzeros, sizeof *op->offsets);
    op->weights = array(from, o->weights, o->nonzeros, sizeof *op->weights);
    if (!op->counts || !op->offsets || !op->weights)
        return from->why;
    const uint16_t *count = op->counts;
    for (uint32_t i = 0; i < o->segment_count; i++) {
        const segment *s = op->segments + i;
        uint32_t number = 0, largest = 0;
        for (uint32_t j = 0; j < s->outputs; j++) number += *count++;
        if (number > o->nonzeros - total)
            return damaged;
        for (uint64_t j = total; j < total + number; j++) largest = op->offsets[j] > largest ? op->offsets[j] : largest;
        if (tiled ? !stays_inside(o, in, out, (uint64_t)s->input + largest)
                  : (uint64_t)s->input + largest >= in->floats)
            return damaged;
        total += number;
    }
    return total == o->nonzeros && done == outputs ? NULL : damaged;
}

/* The columns of a matrix: for each input how many eights and single weights it has; the eights, each with its place,
   then the others, each with its output. */
static const char *open_columns(source *from, const model *net, step *op, const tensor *in, const tensor *out)
{
    const operator *o = &op->o;
    const uint64_t eights = o->segment_count, singles = o->nonzeros;
    op->counts = array(from, o->counts, 2 * (uint64_t)in->floats, sizeof *op->counts);
    op->eights = array(from, o->segments, eights, sizeof *op->eights);
    op->offsets = array(from, o->offsets, singles, sizeof *op->offsets);
    op->weights = array(from, o->weights, 8 * eights + singles, sizeof *op->weights);
    if (!op->counts || !op->eights || !op->offsets || !op->weights)
        return from->why;
    if ((size_t)out->s.offset * LANES + 2 * whole_vectors(out->floats) > net->workspace)
        return "the weights are damaged: there is no room for sums";
    op->eight_weights = op->weights, op->weights += 8 * eights;
    if (!(op->starts = malloc((in->floats + 1) * sizeof *op->starts)))
        return "there is no memory";
    uint64_t eight = 0, single = 0;
    for (size_t i = 0; i < in->floats; i++) {
        op->starts[i] = (start){(uint32_t)eight, (uint32_t)single};
        eight += op->counts[2 * i], single += op->counts[2 * i + 1];
    }
    if (eight != eights || single != singles)
        return "the weights are damaged: there are more or fewer than are counted";
    op->starts[in->floats] = (start){(uint32_t)eight, (uint32_t)single};
    for (uint64_t i = 0; i < eights; i++)
        if ((size_t)op->eights[i] * 8 >= out->floats)
            return "the weights are damaged: an eight is for no output";
    for (uint64_t i = 0; i < singles; i++)
        if (op->offsets[i] >= out->floats)
            return "the weights are damaged: a weight is for no output";
    return NULL;
}

/* Whether a tiled tensor has all the places of another. */
static int alike(const shape *a, const shape *b)
{
    return a->kind == TILED && a->channels >= b->channels && a->step_y == b->step_y && a->step_x == b->step_x;
}

static const char *open_step(source *from, const model *net, step *op, uint32_t index)
{
    const char *const damaged = "the weights are damaged: an operator does not fit its tensors";
    const operator *o = &op->o;
    if (o->kind >= KINDS || o->input >= net->tensor_count || o->output >= net->tensor_count || !o->output ||
        (o->residual != NONE && o->residual >= net->tensor_count))
        return damaged;
    const tensor *in = &net->tensors[o->input], *out = &net->tensors[o->output];
    const tensor *res = o->residual == NONE ? NULL : &net->tensors[o->residual];
    const int layer = o->kind == LINEAR || o->kind == DENSE || o->kind == SCATTER, rows = layer || o->kind == ADD;
    const int tiled = o->kind == CONVOLVE || o->kind == AFFINE || o->kind == MAXIMUM || o->kind == AVERAGE;
    if (o->input == net->output || o->residual == net->output) /* nobody reads the logits, and the last writes them */
        return damaged;
    if ((o->output == net->output) != (index + 1 == net->step_count))
        return damaged;
    if (o->pooled && (o->pooled != 1 || o->kind != CONVOLVE || res || o->stride_y != 1 || o->stride_x != 1))
        return damaged;
    if (o->kind == SCATTER && o->output == net->output) /* it writes whole vectors */
        return damaged;
    if (tiled && (in->s.kind != TILED || out->s.kind != TILED))
        return damaged;
    if (rows && (in->s.kind != FLAT || out->s.kind != FLAT))
        return damaged;
    if (res && rows && (res->s.kind != FLAT || res->floats < out->floats))
        return damaged;
    if (res && !rows && (!tiled || !alike(&res->s, &out->s)))
        return damaged;
    const uint64_t numbers = layer ? out->floats : out->s.channels;
    if (o->scale != NONE && !(op->scale = array(from, o->scale, numbers, sizeof(float))))
        return from->why;
    if (o->shift != NONE && !(op->shift = array(from, o->shift, numbers, sizeof(float))))
        return from->why;
    if ((!op->shift && (rows || o->kind == CONVOLVE || o->kind == AFFINE)) ||
        (!op->scale && (o->kind == AFFINE || o->kind == ADD)))
        return damaged;
    switch (o->kind) {
    case GATHER:
        return open_gather(op, in, out);
    case CONVOLVE:
    case LINEAR:
        return open_nonzeros(from, op, in, out);
    case SCATTER:
        return open_columns(from, net, op, in, out);
    case AFFINE:
        return alike(&in->s, &out->s) ? NULL : damaged;
    case MAXIMUM:
    case AVERAGE:
        if (!o->kernel_y || o->kernel_y > 1 << 15 || !o->kernel_x || o->kernel_x > 1 << 15)
            return damaged;
        if (in->s.channels < out->s.channels)
            return damaged;
        return stays_inside(o, in, out, (uint64_t)(out->s.channels - 1) * (in->plane / LANES) +
                            (uint64_t)(o->kernel_y - 1) * in->s.wide + o->kernel_x - 1) ? NULL : damaged;
    case MEAN:
        return in->s.kind == TILED && out->s.kind == FLAT && out->floats == in->s.channels ? NULL : damaged;
    case DENSE:
        op->weights = array(from, o->weights, (uint64_t)in->floats * out->floats, sizeof(float));
        return op->weights ? NULL : from->why;
    default:
        return in->floats >= out->floats ? NULL : damaged;
    }
}

void model_close(model *net)
{
    if (!net)
        return;
    for (uint32_t i = 0; net->tensors && i < net->tensor_count; i++)
        free(net->tensors[i].edges), free(net->tensors[i].cuts);
    for (uint32_t i = 0; net->steps && i < net->step_count; i++)
        free(net->steps[i].table), free(net->steps[i].starts);
    free(net->tensors), free(net->steps), free(net);
}

static const char *open_all(source *from, model *net)
{
    uint32_t h[HEADER];
    if (from->size < sizeof h || (uintptr_t)from->bytes % 4)
        return "the weights are damaged: they end too early, or are not aligned to 4 bytes";
    memcpy(h, from->bytes, sizeof h);
    if (h[0] != MAGIC || h[1] != VERSION)
        return "these are no weights of this version, or the machine is big-endian";
    uint64_t size = h[2] | (uint64_t)h[3] << 32, sum = h[4] | (uint64_t)h[5] << 32;
    if (size != from->size || size % 4)
        return "the weights are damaged: they have another size";
    if (sum != checksum(from->bytes + 24, from->size - 24))
        return "the weights are damaged: their checksum is wrong";
    net->tensor_count = h[6], net->step_count = h[7], net->output = h[8];
    net->workspace = (size_t)h[9] * LANES;
    const shape *shapes = array(from, h[10], net->tensor_count, sizeof *shapes);
    const operator *operators = array(from, h[11], net->step_count, sizeof *operators);
    if (!shapes || !operators)
        return from->why;
    if (h[9] > 1 << 24 || net->tensor_count < 2 || !net->step_count || !net->output || net->output >= net->tensor_count)
        return "the weights are damaged: there is no network";
    net->tensors = calloc(net->tensor_count, sizeof *net->tensors);
    net->steps = calloc(net->step_count, sizeof *net->steps);
    if (!net->tensors || !net->steps)
        return "there is no memory";
    for (uint32_t i = 0; i < net->tensor_count; i++) {
        net->tensors[i].s = shapes[i];
        const char *why = open_tensor(net, &net->tensors[i], i);
        if (why)
            return why;
    }
    for (uint32_t i = 0; i < net->step_count; i++) {
        net->steps[i].o = operators[i];
        const char *why = open_step(from, net, &net->steps[i], i);
        if (why)
            return why;
    }
    const shape *in = &net->tensors[0].s, *out = &net->tensors[net->output].s;
    const int classes = (int)(out->channels * out->height * out->width);
    const size_t bytes = net->workspace * sizeof(float);
    net->shape = (model_shape){(int)in->channels, (int)in->height, (int)in->width, classes, bytes};
    return NULL;
}

model *model_open(const void *weights, size_t bytes, const char **why)
{
    source from = {weights, bytes, NULL};
    model *net = calloc(1, sizeof *net);
    const char *reason = net ? open_all(&from, net) : "there is no memory";
    if (why)
        *why = reason;
    if (!reason)
        return net;
    model_close(net);
    return NULL;
}

model_shape model_shape_of(const model *net) { return net->shape; }

/* ---- Running ---- */

typedef struct { const float *images; size_t count; float *logits; } task;

struct model_state {
    const model *net;
    void *memory;
    float *workspace;
    int threads;
#ifdef MODEL_THREADS
    int started;
    pthread_t *workers;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    task job;                     /* under the lock, as what follows */
    unsigned jobs;
    int stop;
    atomic_uint arrived, round;
#endif
};

#ifdef MODEL_THREADS
/* Wait until all threads are here: awake for a moment, then asleep. */
static void meet(model_state *state)
{
    if (state->threads == 1)
        return;
    const unsigned round = atomic_load_explicit(&state->round, memory_order_acquire);
    if (atomic_fetch_add_explicit(&state->arrived, 1, memory_order_acq_rel) + 1 == (unsigned)state->threads) {
        atomic_store_explicit(&state->arrived, 0, memory_order_relaxed);
        pthread_mutex_lock(&state->lock);
        atomic_fetch_add_explicit(&state->round, 1, memory_order_release);
        pthread_cond_broadcast(&state->wake);
        pthread_mutex_unlock(&state->lock);
        return;
    }
    for (int tries = 0; tries < 20000; tries++)
        if (atomic_load_explicit(&state->round, memory_order_acquire) != round)
            return;
    pthread_mutex_lock(&state->lock);
    while (atomic_load_explicit(&state->round, memory_order_acquire) == round)
        pthread_cond_wait(&state->wake, &state->lock);
    pthread_mutex_unlock(&state->lock);
}
#else
static void meet(model_state *state) { (void)state; }
#endif

static void work(model_state *state, task job, int part)
{
    const model *net = state->net;
    const size_t size = net->tensors[0].floats, classes = net->tensors[net->output].floats;
    for (size_t i = 0; i < job.count; i++) {
        const float *image = job.images + i * size;
        place_of_work at = {net, state->workspace, image, job.logits + i * classes, part, state->threads};
        for (uint32_t s = 0; s < net->step_count; s++) {
            ACTIONS[net->steps[s].o.kind](&at, &net->steps[s]);
            meet(state);
        }
    }
}

#ifdef MODEL_THREADS
typedef struct { model_state *state; int part; } worker;

static void *serve(void *given)
{
    worker me = *(worker *)given;
    unsigned done = 0;
    free(given);
    for (;;) {
        pthread_mutex_lock(&me.state->lock);
        while (me.state->jobs == done && !me.state->stop) pthread_cond_wait(&me.state->wake, &me.state->lock);
        const int stop = me.state->stop;
        const task job = me.state->job;
        done = me.state->jobs;
        pthread_mutex_unlock(&me.state->lock);
        if (stop)
            return NULL;
        work(me.state, job, me.part);
    }
}

static int start_workers(model_state *state)
{
    state->workers = calloc((size_t)state->threads, sizeof *state->workers);
    if (!state->workers || pthread_mutex_init(&state->lock, NULL) || pthread_cond_init(&state->wake, NULL))
        return 0;
    for (int part = 1; part < state->threads; part++) {
        worker *given = malloc(sizeof *given);
        if (!given)
            return 0;
        *given = (worker){state, part};
        if (pthread_create(&state->workers[part], NULL, serve, given)) {
            free(given);
            return 0;
        }
        state->started = part;
    }
    return 1;
}
#endif

model_state *model_start(const model *net, int threads)
{
    model_state *state = calloc(1, sizeof *state);
    if (!state)
        return NULL;
    state->net = net;
    state->threads = 1;
    state->memory = calloc(1, net->workspace * sizeof(float) + 64);
    state->workspace = (float *)(((uintptr_t)state->memory + 63) / 64 * 64);
#ifdef MODEL_THREADS
    state->threads = threads < 1 ? 1 : threads > 256 ? 256 : threads;
    if (state->memory && state->threads > 1 && !start_workers(state)) {
        model_stop(state);
        return NULL;
    }
#else
    (void)threads;
#endif
    if (!state->memory) {
        model_stop(state);
        return NULL;
    }
    return state;
}

void model_run(model_state *state, const float *images, size_t count, float *logits)
{
    const task job = {images, count, logits};
#ifdef MODEL_THREADS
    if (state->threads > 1) {
        pthread_mutex_lock(&state->lock);
        state->job = job;
        state->jobs++;
        pthread_cond_broadcast(&state->wake);
        pthread_mutex_unlock(&state->lock);
    }
#endif
    work(state, job, 0);
}

void model_stop(model_state *state)
{
    if (!state)
        return;
#ifdef MODEL_THREADS
    if (state->started) {
        pthread_mutex_lock(&state->lock);
        state->stop = 1;
        pthread_cond_broadcast(&state->wake);
        pthread_mutex_unlock(&state->lock);
        for (int part = 1; part <= state->started; part++) pthread_join(state->workers[part], NULL);
    }
    if (state->workers)
        pthread_mutex_destroy(&state->lock), pthread_cond_destroy(&state->wake);
    free(state->workers);
#endif
    free(state->memory);
    free(state);
}
