/* Full softmax attention inside each graph, forward and backward, on a CPU (called by attention/full.py).
 *
 * One unit of work is one head of one graph: its keys and values are packed channel by channel, so that a vector holds
 * consecutive keys, and QUERIES queries pass over them tile by tile with a running maximum and sum (Milakov and
 * Gimelshein 2018; the backward computes the weights again, as Dao et al. 2022). Nothing is padded, no weight is stored.
 * A weight is dropped by a hash of (seed, unit, query, key), so the backward drops the same ones.
 *
 * With -DPAIRS there may also be numbers of keys and of pairs (called by ops/pair_attention.py): scores are
 * s <q, k> + key_bias + theta, and weights are multiplied by 1 + phi after the softmax. The numbers of the pairs of one
 * head, graph and query are a row of consecutive keys.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "simd.h"
#include "threads.h"

#define QUERIES 8
#define KEYS 512 /* of a tile: 16 KiB of scores for QUERIES queries */
#define STEP (2 * LANES)
#define FEW_KEYS 64 /* up to which sums over lanes would take longer than what is summed */
#define GROUP 4  /* channels that are summed together; packed channels are a multiple of it */
#define SUMMED_ROWS (REGISTER_ROWS / 2) /* queries whose sums over GROUP channels fill the registers */

#ifdef PAIRS
#define HAS(pointer) ((pointer) != NULL)
#else
#define HAS(pointer) 0 /* so that plain attention has no trace of these parts */
#endif

typedef struct {
    const real *key_bias, *theta, *phi; /* (N, H), (H, P), (H, P); NULL: none */
    real *grad_key_bias, *grad_theta, *grad_phi;
    const int64_t *ptr;                 /* (B + 1): first pair of each graph, and P */
} Pairs;

typedef struct {
    const real *qkv, *grad_out;  /* (N, 3, H, D), (N, H, D) */
    real *out, *lse, *grad_qkv;  /* (N, H, D), (N, H): log of the sum of exponentials; (N, 3, H, D) */
    const int64_t *ptr;          /* (B + 1) */
    long num_graphs, most;       /* B, nodes of the largest graph */
    int heads, dim, packed;      /* H, D, D rounded up to GROUP */
    real scale, keep_scale;      /* of inner products, 1 / (1 - dropout) */
    uint32_t dropped;            /* hashes below are dropped; 0: none */
    uint64_t seed;
    Pairs pairs;
    atomic_int failed;
    Queue queue;
} Full;

typedef struct {
    const real *key, *value;           /* of the unit, as they are given, */
    long row;                          /* and the numbers from row to row */
    int few;                           /* whether the unit has few keys */
    int wide;                          /* channels of a copied row; 0: sums go channel by channel */
    real *kt, *vt, *grad_kt, *grad_vt; /* (packed, stride) */
    real *rows;                        /* (keys, wide): values in the forward, keys in the backward */
    real *key_bias, *grad_key_bias;    /* (stride), where keys have a bias */
    real *score, *grad, *drop;         /* (QUERIES, KEYS), and (KEYS) */
    real *q, *g, *sum;                 /* (QUERIES, packed): queries, gradients of outputs, sums */
    long stride;
    void *memory;
} Scratch;

/* Whole vectors that hold the channels of a row; 0 where so many of their lanes would be empty that sums over lanes,
 * which take as long as 0.4 of the products, are faster. */
static int row_width(int dim, int packed) {
    int wide = (dim + LANES - 1) / LANES * LANES;
    return 5 * wide <= 7 * packed ? wide : 0;
}

static int make_scratch(const Full *f, Scratch *s) {
    s->stride = ((f->most + STEP - 1) / STEP | 1) * STEP; /* channels a power of two apart would share few cache sets */
    s->wide = row_width(f->dim, f->packed);
    size_t keys = aligned((size_t)f->packed * s->stride * sizeof(real));
    size_t copies = aligned((size_t)s->wide * f->most * sizeof(real));
    size_t tile = aligned(QUERIES * KEYS * sizeof(real)), rows = aligned((size_t)QUERIES * f->packed * sizeof(real));
    size_t bias = HAS(f->pairs.key_bias) ? aligned(s->stride * sizeof(real)) : 0;
    char *next = s->memory = malloc(4 * keys + copies + 2 * bias + 3 * tile + 3 * rows + 2 * ALIGN);
    if (!next) return ENOMEM;
    real **all[] = {&s->kt, &s->vt, &s->grad_kt, &s->grad_vt};
    for (int i = 0; i < 4; i++) *all[i] = carve(&next, keys);
    s->rows = carve(&next, copies);
    s->key_bias = carve(&next, bias);
    s->grad_key_bias = carve(&next, bias);
    s->score = carve(&next, tile);
    s->grad = carve(&next, tile);
    s->drop = carve(&next, tile);
    s->q = carve(&next, rows);
    s->g = carve(&next, rows);
    s->sum = carve(&next, rows);
    return 0;
}

/* Products of QUERIES rows with a tile of keys that are packed channel by channel. */

/* to[c, i] = from[i, c], with zeros up to a multiple of STEP and up to the packed channels. */
static inline void transpose(const real *from, long row, long count, int dim, int packed, real *to, long stride) {
    long width = (count + STEP - 1) / STEP * STEP;
    for (int c = 0; c < dim; c++)
        for (long i = 0; i < width; i += LANES) {
            long rest = count - i;
            vec some = rest <= 0 ? set1(0) : load_apart(from + i * row + c, row, rest < LANES ? (int)rest : LANES);
            store(to + c * stride + i, some);
        }
    for (int c = dim; c < packed; c++) memset(to + c * stride, 0, width * sizeof(real));
}

/* to[i, c] = from[i, c], with zeros after the channels. */
static inline void copy_rows(const real *from, long row, long count, int dim, int wide, real *to) {
    for (long i = 0; i < count; i++) {
        memcpy(to + i * wide, from + i * row, dim * sizeof(real));
        memset(to + i * wide + dim, 0, (wide - dim) * sizeof(real));
    }
}

/* Copies up to QUERIES rows, times a factor, with zeros where there are none. */
static inline void take_rows(const real *from, long row, long count, int dim, int packed, real factor, real *to) {
    memset(to, 0, (size_t)QUERIES * packed * sizeof(real));
    for (long i = 0; i < count; i++)
        for (int c = 0; c < dim; c++) to[i * packed + c] = factor * from[i * row + c];
}

/* score[r, j] = sum_c rows[r, c] keys[c, j] */
static inline void products(const real *rows, const real *keys, long stride, int packed, int width, real *score) {
    for (int j = 0; j < width; j += STEP)
        for (int first = 0; first < QUERIES; first += REGISTER_ROWS) {
            const real *row = rows + first * packed;
            vec sums[REGISTER_ROWS][2] = {0};
            for (int c = 0; c < packed; c += FACTORS) {
                factors some[REGISTER_ROWS];
                UNROLL for (int r = 0; r < REGISTER_ROWS; r++) some[r] = load_factors(row + r * packed + c);
                UNROLL for (int i = 0; i < FACTORS; i++) {
                    const real *at = keys + (c + i) * stride + j;
                    vec a = load(at), b = load(at + LANES);
                    UNROLL for (int r = 0; r < REGISTER_ROWS; r++) {
                        sums[r][0] = add_multiple(sums[r][0], some[r], i, a);
                        sums[r][1] = add_multiple(sums[r][1], some[r], i, b);
                    }
                }
            }
            UNROLL for (int r = 0; r < REGISTER_ROWS; r++) {
                store(score + (first + r) * KEYS + j, sums[r][0]);
                store(score + (first + r) * KEYS + j + LANES, sums[r][1]);
            }
        }
}

/* sum[r, c] += sum_j weight[r, j] keys[c, j] */
static inline void add_weighted(const real *weight, const real *keys, long stride, int packed, int width, real *sum) {
    for (int first = 0; first < QUERIES; first += SUMMED_ROWS)
        for (int c = 0; c < packed; c += GROUP) {
            vec sums[SUMMED_ROWS][GROUP] = {0};
            for (int j = 0; j < width; j += LANES) {
                vec w[SUMMED_ROWS];
                UNROLL for (int r = 0; r < SUMMED_ROWS; r++) w[r] = load(weight + (first + r) * KEYS + j);
                UNROLL for (int i = 0; i < GROUP; i++) {
                    vec key = load(keys + (c + i) * stride + j);
                    UNROLL for (int r = 0; r < SUMMED_ROWS; r++) sums[r][i] = fma_(w[r], key, sums[r][i]);
                }
            }
            for (int r = 0; r < SUMMED_ROWS; r++)
                for (int i = 0; i < GROUP; i++) sum[(first + r) * packed + c + i] += sum_lanes(sums[r][i]);
        }
}

/* The same with keys row by row, `readable` numbers of each, dim or a multiple of LANES: sum[r, c] += sum_j weight[r, j]
 * keys[j, c]. No sums over lanes; a tile is summed on its own, so that rounding does not grow with the number of keys. */
static inline void add_weighted_rows(const real *weight, const real *keys, long row, int readable, int count, int dim,
                                     int packed, real *sum) {
    for (int c = 0; c < dim; c += LANES) {
        vec sums[QUERIES] = {0};
        for (int j = 0; j < count; j++) {
            vec key = load_some(keys + j * row + c, readable - c);
            UNROLL for (int r = 0; r < QUERIES; r++) sums[r] = fma_(set1(weight[r * KEYS + j]), key, sums[r]);
        }
        UNROLL for (int r = 0; r < QUERIES; r++) {
            vec before = load_some(sum + r * packed + c, dim - c);
            store_some(sum + r * packed + c, before + sums[r], dim - c);
        }
    }
}

/* keys[c, j] += sum_r rows[r, c] weight[r, j] */
static inline void add_outer(const real *rows, const real *weight, long stride, int packed, int width, real *keys) {
    for (int j = 0; j < width; j += LANES) {
        vec w[QUERIES];
        UNROLL for (int r = 0; r < QUERIES; r++) w[r] = load(weight + r * KEYS + j);
        for (int c = 0; c < packed; c += FACTORS) {
            factors some[QUERIES];
            UNROLL for (int r = 0; r < QUERIES; r++) some[r] = load_factors(rows + r * packed + c);
            UNROLL for (int i = 0; i < FACTORS; i++) {
                real *at = keys + (c + i) * stride + j;
                vec sum = load(at);
                UNROLL for (int r = 0; r < QUERIES; r++) sum = add_multiple(sum, some[r], i, w[r]);
                store(at, sum);
            }
        }
    }
}

static inline uint64_t mixed(uint64_t bits) { /* SplitMix64 */
    bits += 0x9e3779b97f4a7c15;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
    return bits ^ bits >> 31;
}

/* What the weights of one query and the keys from `first` on are multiplied by. */
static void draw(const Full *f, long unit, long query, long first, int width, real *restrict drop) {
    uint64_t row = mixed(mixed(f->seed + (uint64_t)unit) ^ (uint64_t)query);
    uint32_t start = (uint32_t)row + (uint32_t)first, middle = (uint32_t)(row >> 32);
    for (int j = 0; j < width; j++) {
        uint32_t x = start + (uint32_t)j;
        x = (x ^ x >> 16) * 0x7feb352dU ^ middle;
        x = (x ^ x >> 15) * 0x846ca68bU;
        drop[j] = (x ^ x >> 16) < f->dropped ? 0 : f->keep_scale;
    }
}

/* score[j] = exp(score[j] - shift), 0 from `valid` on; returns the sum. */
static real exponentials(real *score, real shift, int valid, int width) {
    vec sum = set1(0);
    for (int j = 0; j < width; j += LANES) {
        vec part = j < valid ? first_lanes(exp_(load(score + j) - set1(shift)), valid - j, set1(0)) : set1(0);
        store(score + j, part);
        sum = sum + part;
    }
    return sum_lanes(sum);
}

static real largest_of(const real *score, int valid) {
    vec largest = set1(-INFINITY);
    for (int j = 0; j < valid; j += LANES) largest = max_(largest, first_lanes(load(score + j), valid - j, largest));
    return max_lanes(largest);
}

/* First number of a tile in a row of pairs, of the first of some queries; rows have as many numbers as the graph nodes. */
static inline long first_pair(const Full *f, long unit, long query, long first) {
    long graph = unit / f->heads, nodes = f->ptr[graph + 1] - f->ptr[graph];
    return unit % f->heads * f->pairs.ptr[f->num_graphs] + f->pairs.ptr[graph] + query * nodes + first;
}

static inline long row_of_pairs(const Full *f, long unit) {
    return f->ptr[unit / f->heads + 1] - f->ptr[unit / f->heads];
}

/* to[j] += from[j] */
static inline void add_row(real *restrict to, const real *restrict from, int count) {
    for (int j = 0; j < count; j++) to[j] += from[j];
}

/* Adds the biases of a tile of keys, and of their pairs with `count` queries, to the scores. */
static void add_biases(const Full *f, Scratch *s, long unit, long query, int count, long first, int valid) {
    long pair = HAS(f->pairs.theta) ? first_pair(f, unit, query, first) : 0, row = row_of_pairs(f, unit);
    for (int r = 0; r < count; r++) {
        if (HAS(f->pairs.key_bias)) add_row(s->score + r * KEYS, s->key_bias + first, valid);
        if (HAS(f->pairs.theta)) add_row(s->score + r * KEYS, f->pairs.theta + pair + r * row, valid);
    }
}

/* weight[j] *= 1 + phi[j] */
static inline void multiply_row(real *restrict weight, const real *restrict phi, int count) {
    for (int j = 0; j < count; j++) weight[j] *= 1 + phi[j];
}

/* Packs the key biases of a unit. */
static void take_key_bias(const Full *f, Scratch *s, long unit) {
    long begin = f->ptr[unit / f->heads], end = f->ptr[unit / f->heads + 1];
    for (long i = begin; i < end; i++) s->key_bias[i - begin] = f->pairs.key_bias[i * f->heads + unit % f->heads];
    memset(s->grad_key_bias, 0, (end - begin) * sizeof(real));
}

static inline int padded(long keys) { return (int)((keys + STEP - 1) / STEP * STEP); }

/* sum[r, c] += sum_j weight[r, j] from[j, c] over a tile of keys: as given where they are few, else from the copied rows
 * or, without these, from what is packed channel by channel. */
static void add_products(const Full *f, Scratch *s, const real *weight, const real *unpacked, const real *packed,
                         long first, int valid) {
    if (s->few) add_weighted_rows(weight, unpacked, s->row, f->dim, valid, f->dim, f->packed, s->sum);
    else if (s->wide)
        add_weighted_rows(weight, s->rows + first * s->wide, s->wide, s->wide, valid, f->dim, f->packed, s->sum);
    else add_weighted(weight, packed + first, s->stride, f->packed, padded(valid), s->sum);
}

/* Passes over one tile of keys: raises the maxima, sums weights and weighted values. */
static void forward_tile(const Full *f, Scratch *s, long unit, long query, int count, long first, int valid, real *top,
                         real *total) {
    int width = padded(valid);
    products(s->q, s->kt + first, s->stride, f->packed, width, s->score);
    if (HAS(f->pairs.ptr)) add_biases(f, s, unit, query, count, first, valid);
    for (int r = 0; r < QUERIES; r++) {
        real *score = s->score + r * KEYS;
        real before = top[r], now = largest_of(score, valid);
        top[r] = before > now ? before : now;
        real factor = before == -INFINITY ? 0 : (real)exp(before - top[r]);
        real shift = HAS(f->pairs.theta) && top[r] == -INFINITY ? 0 : top[r]; /* no pair so far: any finite number */
        total[r] = total[r] * factor + exponentials(score, shift, valid, width);
        for (int c = 0; c < f->packed; c++) s->sum[r * f->packed + c] *= factor;
        if (HAS(f->pairs.phi) && r < count)
            multiply_row(score, f->pairs.phi + first_pair(f, unit, query + r, first), valid);
        if (!f->dropped || r >= count) continue;
        draw(f, unit, query + r, first, width, s->drop);
        for (int j = 0; j < width; j++) score[j] *= s->drop[j];
    }
    add_products(f, s, s->score, s->value, s->vt, first, valid);
}

/* Packs the keys of a unit and, where they are needed channel by channel, its values; copies the rows that are summed. */
static void take_keys(const Full *f, Scratch *s, long unit, int backward) {
    long begin = f->ptr[unit / f->heads], end = f->ptr[unit / f->heads + 1], all = (long)f->heads * f->dim;
    s->row = 3 * all;
    s->key = f->qkv + begin * s->row + all + unit % f->heads * f->dim;
    s->value = s->key + all;
    s->few = end - begin <= FEW_KEYS;
    transpose(s->key, s->row, end - begin, f->dim, f->packed, s->kt, s->stride);
    if (backward || !(s->few || s->wide)) transpose(s->value, s->row, end - begin, f->dim, f->packed, s->vt, s->stride);
    if (!s->few && s->wide)
        copy_rows(backward ? s->key : s->value, s->row, end - begin, f->dim, s->wide, s->rows);
}

static void forward_unit(const Full *f, Scratch *s, long unit) {
    long begin = f->ptr[unit / f->heads], end = f->ptr[unit / f->heads + 1], head = unit % f->heads * f->dim;
    long all = (long)f->heads * f->dim, row = 3 * all;
    take_keys(f, s, unit, 0);
    if (HAS(f->pairs.key_bias)) take_key_bias(f, s, unit);
    for (long query = begin; query < end; query += QUERIES) {
        int count = end - query < QUERIES ? (int)(end - query) : QUERIES;
        real top[QUERIES], total[QUERIES] = {0};
        for (int r = 0; r < QUERIES; r++) top[r] = -INFINITY;
        take_rows(f->qkv + query * row + head, row, count, f->dim, f->packed, f->scale, s->q);
        memset(s->sum, 0, (size_t)QUERIES * f->packed * sizeof(real));
        for (long first = 0; first < end - begin; first += KEYS) {
            int valid = end - begin - first < KEYS ? (int)(end - begin - first) : KEYS;
            forward_tile(f, s, unit, query - begin, count, first, valid, top, total);
        }
        for (int r = 0; r < count; r++) {
            real *out = f->out + (query + r) * all + head;
            if (HAS(f->pairs.theta) && top[r] == -INFINITY && total[r] == total[r]) { /* no pair, and no NaN */
                memset(out, 0, f->dim * sizeof(real));
                f->lse[(query + r) * f->heads + unit % f->heads] = INFINITY;
                continue;
            }
            f->lse[(query + r) * f->heads + unit % f->heads] = top[r] + (real)log(total[r]);
            for (int c = 0; c < f->dim; c++) out[c] = s->sum[r * f->packed + c] / total[r];
        }
    }
}

static void keep_gradients(const Full *f, Scratch *s, const real *grad, long unit, long query, long first, int valid) {
    if (HAS(f->pairs.key_bias)) add_row(s->grad_key_bias + first, grad, valid);
    if (HAS(f->pairs.grad_theta))
        memcpy(f->pairs.grad_theta + first_pair(f, unit, query, first), grad, valid * sizeof(real));
}

/* Stores the gradient of one row of phi, and turns what dropout makes of 1 into what it makes of 1 + phi. */
static void with_phi(const Full *f, const real *restrict weight, const real *restrict grad, real *restrict drop,
                     long unit, long query, long first, int valid, int width) {
    long pair = first_pair(f, unit, query, first);
    if (!f->dropped)
        for (int j = 0; j < width; j++) drop[j] = 1;
    if (HAS(f->pairs.grad_phi)) {
        real *restrict grad_phi = f->pairs.grad_phi + pair;
        for (int j = 0; j < valid; j++) grad_phi[j] = weight[j] * grad[j] * drop[j];
    }
    multiply_row(drop, f->pairs.phi + pair, valid);
}

/* With a the weights and z what dropout makes of 1 + phi: dv = sum a z g, ds = a (z <g, v> - <g, o>), dq = sum ds k,
 * dk = sum ds q; the sum of ds over queries is the gradient of a key bias, ds that of theta, and a <g, v> times dropout
 * that of phi. */
static void backward_tile(const Full *f, Scratch *s, long unit, long query, int count, long first, int valid,
                          const real *lse, const real *mean) {
    int width = padded(valid);
    products(s->q, s->kt + first, s->stride, f->packed, width, s->score);
    products(s->g, s->vt + first, s->stride, f->packed, width, s->grad);
    if (HAS(f->pairs.ptr)) add_biases(f, s, unit, query, count, first, valid);
    for (int r = 0; r < QUERIES; r++) {
        real *restrict score = s->score + r * KEYS, *restrict grad = s->grad + r * KEYS, *restrict drop = s->drop;
        if (r >= count) {
            memset(score, 0, width * sizeof(real));
            memset(grad, 0, width * sizeof(real));
            continue;
        }
        exponentials(score, lse[r], valid, width);
        if (!f->dropped && !HAS(f->pairs.phi)) {
            for (int j = 0; j < width; j++) grad[j] = score[j] * (grad[j] - mean[r]);
            if (HAS(f->pairs.ptr)) keep_gradients(f, s, grad, unit, query + r, first, valid);
            continue;
        }
        if (f->dropped) draw(f, unit, query + r, first, width, drop);
        if (HAS(f->pairs.phi)) with_phi(f, score, grad, drop, unit, query + r, first, valid, width);
        for (int j = 0; j < width; j++) {
            grad[j] = score[j] * (grad[j] * drop[j] - mean[r]);
            score[j] *= drop[j];
        }
        if (HAS(f->pairs.ptr)) keep_gradients(f, s, grad, unit, query + r, first, valid);
    }
    add_products(f, s, s->grad, s->key, s->kt, first, valid);
    add_outer(s->q, s->grad, s->stride, f->packed, width, s->grad_kt + first);
    add_outer(s->g, s->score, s->stride, f->packed, width, s->grad_vt + first);
}

static void backward_unit(const Full *f, Scratch *s, long unit) {
    long begin = f->ptr[unit / f->heads], end = f->ptr[unit / f->heads + 1], head = unit % f->heads * f->dim;
    long all = (long)f->heads * f->dim, row = 3 * all, size = (long)f->packed * s->stride;
    take_keys(f, s, unit, 1);
    memset(s->grad_kt, 0, size * sizeof(real));
    memset(s->grad_vt, 0, size * sizeof(real));
    if (HAS(f->pairs.key_bias)) take_key_bias(f, s, unit);
    for (long query = begin; query < end; query += QUERIES) {
        int count = end - query < QUERIES ? (int)(end - query) : QUERIES;
        real lse[QUERIES], mean[QUERIES] = {0};
        take_rows(f->qkv + query * row + head, row, count, f->dim, f->packed, f->scale, s->q);
        take_rows(f->grad_out + query * all + head, all, count, f->dim, f->packed, 1, s->g);
        memset(s->sum, 0, (size_t)QUERIES * f->packed * sizeof(real));
        for (int r = 0; r < count; r++) {
            const real *out = f->out + (query + r) * all + head;
            lse[r] = f->lse[(query + r) * f->heads + unit % f->heads];
            for (int c = 0; c < f->dim; c++) mean[r] += s->g[r * f->packed + c] * out[c];
        }
        for (long first = 0; first < end - begin; first += KEYS) {
            int valid = end - begin - first < KEYS ? (int)(end - begin - first) : KEYS;
            backward_tile(f, s, unit, query - begin, count, first, valid, lse, mean);
        }
        for (int r = 0; r < count; r++)
            for (int c = 0; c < f->dim; c++)
                f->grad_qkv[(query + r) * row + head + c] = f->scale * s->sum[r * f->packed + c];
    }
    for (long i = 0; i < end - begin; i++)
        for (int c = 0, count = f->dim; c < f->dim; c += LANES, count -= LANES) {
            real *grad = f->grad_qkv + (begin + i) * row + all + head + c;
            store_some(grad, load_apart(s->grad_kt + c * s->stride + i, s->stride, count), count);
            store_some(grad + all, load_apart(s->grad_vt + c * s->stride + i, s->stride, count), count);
        }
    if (!HAS(f->pairs.key_bias)) return;
    for (long i = 0; i < end - begin; i++)
        f->pairs.grad_key_bias[(begin + i) * f->heads + unit % f->heads] = s->grad_key_bias[i];
}

static void *work(void *argument) {
    Full *f = argument;
    Scratch s;
    long unit, end;
    if (make_scratch(f, &s)) {
        atomic_store(&f->failed, ENOMEM);
        return NULL;
    }
    while ((unit = take(&f->queue, 1, &end)) < end)
        if (f->grad_qkv) backward_unit(f, &s, unit);
        else forward_unit(f, &s, unit);
    free(s.memory);
    return NULL;
}

static int run(Full *f, int num_threads) {
    run_queue(&f->queue, work, f, f->num_graphs * f->heads, num_threads);
    return atomic_load(&f->failed);
}

static Full described(const real *qkv, const real *grad_out, const int64_t *ptr, long num_graphs, long most, int heads,
                      int dim, double scale, double dropout, uint64_t seed, real *out, real *lse, real *grad_qkv) {
    return (Full){.qkv = qkv, .grad_out = grad_out, .out = out, .lse = lse, .grad_qkv = grad_qkv, .ptr = ptr,
                  .num_graphs = num_graphs, .most = most, .heads = heads, .dim = dim,
                  .packed = (dim + GROUP - 1) / GROUP * GROUP, .scale = (real)scale,
                  .keep_scale = (real)(1 / (1 - dropout)), .dropped = (uint32_t)(dropout * 0x1p32), .seed = seed};
}

/* Forward where grad_qkv is NULL, else backward, which reads out and lse. Returns 0, or ENOMEM. */
#ifdef PAIRS
int pair_attention(const real *qkv, const real *grad_out, const int64_t *ptr, long num_graphs, long most, int heads,
                   int dim, double scale, double dropout, uint64_t seed, int num_threads, real *out, real *lse,
                   real *grad_qkv, const int64_t *pair_ptr, const real *key_bias, const real *theta, const real *phi,
                   real *grad_key_bias, real *grad_theta, real *grad_phi) {
    Full f = described(qkv, grad_out, ptr, num_graphs, most, heads, dim, scale, dropout, seed, out, lse, grad_qkv);
    f.pairs = (Pairs){.key_bias = key_bias, .theta = theta, .phi = phi, .grad_key_bias = grad_key_bias,
                      .grad_theta = grad_theta, .grad_phi = grad_phi, .ptr = pair_ptr};
    return run(&f, num_threads);
}
#else
int full_attention(const real *qkv, const real *grad_out, const int64_t *ptr, long num_graphs, long most, int heads,
                   int dim, double dropout, uint64_t seed, int num_threads, real *out, real *lse, real *grad_qkv) {
    Full f = described(qkv, grad_out, ptr, num_graphs, most, heads, dim, 1 / sqrt(dim), dropout, seed, out, lse,
                       grad_qkv);
    return run(&f, num_threads);
}
#endif
