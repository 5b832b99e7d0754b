/* Full softmax attention inside each graph, forward and backward, on a CPU (called by attention/full_cpu.py).
 *
 * One unit of work is one head of one graph: its keys and values are packed channel by channel, so that a vector holds
 * consecutive keys, and QUERIES queries pass over them tile by tile with a running maximum and sum (Milakov and
 * Gimelshein 2018; the backward computes the weights again, as Dao et al. 2022). Nothing is padded, no weight is kept.
 * A weight is dropped by a hash of (seed, unit, query, key), so the backward drops the same ones.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "simd.h"
#include "threads.h"

#include "exponential.h"
#include "products.h"

typedef struct {
    const real *qkv, *grad_out;  /* (N, 3, H, D), (N, H, D) */
    real *out, *lse, *grad_qkv;  /* (N, H, D), (N, H): log of the sum of exponentials; (N, 3, H, D) */
    const int64_t *ptr;          /* (B + 1) */
    long num_graphs, most;       /* B, nodes of the largest graph */
    int heads, dim, packed;      /* H, D, D rounded up to GROUP */
    real scale, kept;            /* 1 / sqrt(D), 1 / (1 - dropout) */
    uint32_t dropped;            /* hashes below are dropped; 0: none */
    uint64_t seed;
    atomic_int failed;
    Queue queue;
} Full;

typedef struct {
    real *kt, *vt, *grad_kt, *grad_vt; /* (packed, stride) */
    real *score, *grad, *drop;         /* (QUERIES, KEYS), and (KEYS) */
    real *q, *g, *sum;                 /* (QUERIES, packed): queries, gradients of outputs, sums */
    long stride;
    void *memory;
} Scratch;

static int make_scratch(const Full *f, Scratch *s) {
    s->stride = (f->most + STEP - 1) / STEP * STEP;
    size_t keys = aligned((size_t)f->packed * s->stride * sizeof(real));
    size_t tile = aligned(QUERIES * KEYS * sizeof(real)), rows = aligned((size_t)QUERIES * f->packed * sizeof(real));
    char *next = s->memory = malloc(4 * keys + 3 * tile + 3 * rows + 2 * ALIGN);
    if (!next) return ENOMEM;
    real **all[] = {&s->kt, &s->vt, &s->grad_kt, &s->grad_vt};
    for (int i = 0; i < 4; i++) *all[i] = carve(&next, keys);
    s->score = carve(&next, tile);
    s->grad = carve(&next, tile);
    s->drop = carve(&next, tile);
    s->q = carve(&next, rows);
    s->g = carve(&next, rows);
    s->sum = carve(&next, rows);
    return 0;
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
        drop[j] = (x ^ x >> 16) < f->dropped ? 0 : f->kept;
    }
}

/* score[j] = exp(score[j] - shift), 0 from `valid` on; returns the sum. */
static real exponentials(real *score, real shift, int valid, int width) {
    vec sum = set1(0);
    for (int j = 0; j < width; j += LANES) store(score + j, exp_(load(score + j) - set1(shift)));
    for (int j = valid; j < width; j++) score[j] = 0;
    for (int j = 0; j < width; j += LANES) sum = sum + load(score + j);
    return sum_lanes(sum);
}

static inline int padded(long keys) { return (int)((keys + STEP - 1) / STEP * STEP); }

/* Passes over one tile of keys: raises the maxima, sums weights and weighted values. */
static void forward_tile(const Full *f, Scratch *s, long unit, long query, int count, long first, int valid, real *top,
                         real *total) {
    int width = padded(valid);
    products(s->q, s->kt + first, s->stride, f->packed, width, s->score);
    for (int r = 0; r < QUERIES; r++) {
        real *score = s->score + r * KEYS;
        for (int j = valid; j < width; j++) score[j] = -INFINITY;
        vec largest = load(score);
        for (int j = LANES; j < width; j += LANES) largest = max_(largest, load(score + j));
        real before = top[r], now = max_lanes(largest);
        top[r] = before > now ? before : now;
        real factor = before == -INFINITY ? 0 : (real)exp(before - top[r]);
        total[r] = total[r] * factor + exponentials(score, top[r], valid, width);
        for (int c = 0; c < f->packed; c++) s->sum[r * f->packed + c] *= factor;
        if (!f->dropped || r >= count) continue;
        draw(f, unit, query + r, first, width, s->drop);
        for (int j = 0; j < width; j++) score[j] *= s->drop[j];
    }
    add_weighted(s->score, s->vt + first, s->stride, f->packed, width, s->sum);
}

static void forward_unit(const Full *f, Scratch *s, long unit) {
    long begin = f->ptr[unit / f->heads], end = f->ptr[unit / f->heads + 1], head = unit % f->heads * f->dim;
    long all = (long)f->heads * f->dim, row = 3 * all;
    transpose(f->qkv + begin * row + all + head, row, end - begin, f->dim, f->packed, s->kt, s->stride);
    transpose(f->qkv + begin * row + 2 * all + head, row, end - begin, f->dim, f->packed, s->vt, s->stride);
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
            f->lse[(query + r) * f->heads + unit % f->heads] = top[r] + (real)log(total[r]);
            for (int c = 0; c < f->dim; c++) out[c] = s->sum[r * f->packed + c] / total[r];
        }
    }
}

/* With a the weights and z what dropout makes of 1: dv = sum a z g, ds = a (z <g, v> - <g, o>), dq = sum ds k,
 * dk = sum ds q. */
static void backward_tile(const Full *f, Scratch *s, long unit, long query, int count, long first, int valid,
                          const real *lse, const real *mean) {
    int width = padded(valid);
    products(s->q, s->kt + first, s->stride, f->packed, width, s->score);
    products(s->g, s->vt + first, s->stride, f->packed, width, s->grad);
    for (int r = 0; r < QUERIES; r++) {
        real *restrict score = s->score + r * KEYS, *restrict grad = s->grad + r * KEYS, *restrict drop = s->drop;
        if (r >= count) {
            memset(score, 0, width * sizeof(real));
            memset(grad, 0, width * sizeof(real));
            continue;
        }
        exponentials(score, lse[r], valid, width);
        if (!f->dropped) {
            for (int j = 0; j < width; j++) grad[j] = score[j] * (grad[j] - mean[r]);
            continue;
        }
        draw(f, unit, query + r, first, width, drop);
        for (int j = 0; j < width; j++) {
            grad[j] = score[j] * (grad[j] * drop[j] - mean[r]);
            score[j] *= drop[j];
        }
    }
    add_weighted(s->grad, s->kt + first, s->stride, f->packed, width, s->sum);
    add_outer(s->q, s->grad, s->stride, f->packed, width, s->grad_kt + first);
    add_outer(s->g, s->score, s->stride, f->packed, width, s->grad_vt + first);
}

static void backward_unit(const Full *f, Scratch *s, long unit) {
    long begin = f->ptr[unit / f->heads], end = f->ptr[unit / f->heads + 1], head = unit % f->heads * f->dim;
    long all = (long)f->heads * f->dim, row = 3 * all, size = (long)f->packed * s->stride;
    transpose(f->qkv + begin * row + all + head, row, end - begin, f->dim, f->packed, s->kt, s->stride);
    transpose(f->qkv + begin * row + 2 * all + head, row, end - begin, f->dim, f->packed, s->vt, s->stride);
    memset(s->grad_kt, 0, size * sizeof(real));
    memset(s->grad_vt, 0, size * sizeof(real));
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
        for (int c = 0; c < f->dim; c++) {
            f->grad_qkv[(begin + i) * row + all + head + c] = s->grad_kt[c * s->stride + i];
            f->grad_qkv[(begin + i) * row + 2 * all + head + c] = s->grad_vt[c * s->stride + i];
        }
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

/* Forward where grad_qkv is NULL, else backward, which reads out and lse. Returns 0, or ENOMEM. */
int full_attention(const real *qkv, const real *grad_out, const int64_t *ptr, long num_graphs, long most, int heads,
                   int dim, double dropout, uint64_t seed, int num_threads, real *out, real *lse, real *grad_qkv) {
    Full f = {.qkv = qkv, .grad_out = grad_out, .out = out, .lse = lse, .grad_qkv = grad_qkv, .ptr = ptr,
              .num_graphs = num_graphs, .most = most, .heads = heads, .dim = dim,
              .packed = (dim + GROUP - 1) / GROUP * GROUP, .scale = (real)(1 / sqrt(dim)),
              .kept = (real)(1 / (1 - dropout)), .dropped = (uint32_t)(dropout * 0x1p32), .seed = seed};
    atomic_store(&f.queue.next, 0);
    f.queue.items = num_graphs * heads;
    run_parallel(work, &f, num_threads);
    return atomic_load(&f.failed);
}
