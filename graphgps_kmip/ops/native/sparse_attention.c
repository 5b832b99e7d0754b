/* Softmax attention over selected keys, forward and backward, on a CPU (called by ops/sparse_attention.py).
 *
 * R queries meet, in each of K slots, one of S keys and values; rows[r, j] < 0 is an empty slot. The sums over the
 * queries that selected a key run in the order of the queries, so results repeat bit for bit on any number of threads.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "simd.h"
#include "threads.h"

#define STEP 256 /* rows that a thread takes at a time */

typedef struct {
    const real *q, *k, *v, *score, *grad_out;
    const int32_t *rows;
    const uint8_t *keep;       /* (R, K), or NULL */
    real *weight, *out;        /* (R, K), (R, C) */
    real *grad_score, *grad_q, *grad_k, *grad_v;
    long num_rows, num_keys;   /* R, S */
    int slots, dim, width;     /* K, D, C */
    real scale, keep_scale;    /* 1 / sqrt(D), 1 / (1 - dropout) */
    const int64_t *start;      /* (S + 1): where the slots of a key begin in `slot` */
    const int32_t *slot;       /* (R K): slots by key, each list in the order of the queries */
    atomic_int failed;
    Queue queue;
} Sparse;

static inline void add(real *restrict sum, real factor, const real *restrict values, int width) {
    for (int c = 0; c < width; c++) sum[c] = MULTIPLY_ADD(factor, values[c], sum[c]);
}

static inline real dot(const real *restrict a, const real *restrict b, int width) {
    real sums[4] = {0}; /* four chains: one alone would wait for each addition */
    int c = 0;
    for (; c + 4 <= width; c += 4)
        for (int i = 0; i < 4; i++) sums[i] = MULTIPLY_ADD(a[c + i], b[c + i], sums[i]);
    for (; c < width; c++) sums[0] = MULTIPLY_ADD(a[c], b[c], sums[0]);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* Asks for the values that the row after next will gather: they are anywhere. */
static inline void fetch(const Sparse *s, const real *values, int width, long row) {
    if (row >= s->num_rows) return;
    for (int j = 0; j < s->slots; j++) {
        long at = s->rows[row * s->slots + j];
        if (at < 0) continue;
        __builtin_prefetch(values + at * width);
        __builtin_prefetch(values + (at + 1) * width - 1);
    }
}

static void *forward_rows(void *argument) {
    Sparse *s = argument;
    long row, end;
    int slots = s->slots, width = s->width, outside = 0;
    while ((row = take(&s->queue, STEP, &end)) < end)
        for (; row < end; row++) {
            const real *score = s->score + row * slots;
            real *weight = s->weight + row * slots, *out = s->out + row * width, largest = -INFINITY, sum = 0;
            fetch(s, s->v, width, row + 2);
            for (int j = 0; j < slots; j++) outside |= s->rows[row * slots + j] >= s->num_keys;
            if (outside) break;
            for (int j = 0; j < slots; j++) largest = score[j] > largest ? score[j] : largest;
            for (int j = 0; j < slots; j++) {
                int real_slot = s->rows[row * slots + j] >= 0 && score[j] > -INFINITY;
                weight[j] = real_slot ? EXP((score[j] - largest) * s->scale) : 0;
                sum += weight[j];
            }
            memset(out, 0, width * sizeof(real));
            for (int j = 0; j < slots; j++) {
                if (weight[j] == 0) continue;
                weight[j] /= sum;
                if (!s->keep) add(out, weight[j], s->v + (long)s->rows[row * slots + j] * width, width);
                else if (s->keep[row * slots + j])
                    add(out, weight[j] * s->keep_scale, s->v + (long)s->rows[row * slots + j] * width, width);
            }
        }
    if (outside) atomic_store(&s->failed, 1);
    return NULL;
}

/* da = <g, v>, ds = a (da - sum a da) / sqrt(D), dq = sum ds k. */
static void *backward_rows(void *argument) {
    Sparse *s = argument;
    long row, end;
    int slots = s->slots;
    while ((row = take(&s->queue, STEP, &end)) < end)
        for (; row < end; row++) {
            const int32_t *at = s->rows + row * slots;
            const real *weight = s->weight + row * slots, *g = s->grad_out + row * s->width;
            real *grad_score = s->grad_score + row * slots, *grad_q = s->grad_q + row * s->dim, mean = 0;
            fetch(s, s->v, s->width, row + 2);
            fetch(s, s->k, s->dim, row + 1);
            for (int j = 0; j < slots; j++) {
                int used = at[j] >= 0 && (!s->keep || s->keep[row * slots + j]);
                grad_score[j] = used ? dot(g, s->v + (long)at[j] * s->width, s->width) : 0;
                if (s->keep) grad_score[j] *= s->keep_scale;
                mean += weight[j] * grad_score[j];
            }
            memset(grad_q, 0, s->dim * sizeof(real));
            for (int j = 0; j < slots; j++) {
                grad_score[j] = weight[j] * (grad_score[j] - mean) * s->scale;
                if (at[j] >= 0) add(grad_q, grad_score[j], s->k + (long)at[j] * s->dim, s->dim);
            }
        }
    return NULL;
}

/* dk = sum ds q and dv = sum a g over the queries that selected a key. */
static void *backward_keys(void *argument) {
    Sparse *s = argument;
    long key, end;
    while ((key = take(&s->queue, STEP, &end)) < end)
        for (; key < end; key++) {
            real *grad_k = s->grad_k + key * s->dim, *grad_v = s->grad_v + key * s->width;
            memset(grad_k, 0, s->dim * sizeof(real));
            memset(grad_v, 0, s->width * sizeof(real));
            for (int64_t i = s->start[key]; i < s->start[key + 1]; i++) {
                long slot = s->slot[i], row = slot / s->slots;
                if (i + 8 < s->start[s->num_keys]) {
                    long ahead = s->slot[i + 8] / s->slots;
                    __builtin_prefetch(s->q + ahead * s->dim);
                    __builtin_prefetch(s->grad_out + ahead * s->width);
                }
                add(grad_k, s->grad_score[slot], s->q + row * s->dim, s->dim);
                if (!s->keep) add(grad_v, s->weight[slot], s->grad_out + row * s->width, s->width);
                else if (s->keep[slot])
                    add(grad_v, s->weight[slot] * s->keep_scale, s->grad_out + row * s->width, s->width);
            }
        }
    return NULL;
}

/* Returns 0, or EINVAL for a row that v does not have. */
int sparse_attention_forward(const real *v, const int32_t *rows, const real *score, const uint8_t *keep, long num_rows,
                             long num_keys, int slots, int dim, int width, double dropout, int num_threads, real *out,
                             real *weight) {
    Sparse s = {.v = v, .rows = rows, .score = score, .keep = keep, .num_rows = num_rows, .num_keys = num_keys,
                .slots = slots, .dim = dim, .width = width, .scale = (real)(1 / sqrt(dim)),
                .keep_scale = (real)(1 / (1 - dropout)), .out = out, .weight = weight};
    run_queue(&s.queue, forward_rows, &s, num_rows, num_threads);
    return atomic_load(&s.failed) ? EINVAL : 0;
}

/* Returns 0, or ENOMEM. */
int sparse_attention_backward(const real *grad_out, const real *q, const real *k, const real *v, const int32_t *rows,
                              real *weight, const uint8_t *keep, long num_rows, long num_keys, int slots, int dim,
                              int width, double dropout, int num_threads, real *grad_q, real *grad_k, real *grad_v) {
    Sparse s = {.grad_out = grad_out, .q = q, .k = k, .v = v, .rows = rows, .weight = weight, .keep = keep,
                .num_rows = num_rows, .num_keys = num_keys, .slots = slots, .dim = dim, .width = width,
                .scale = (real)(1 / sqrt(dim)), .keep_scale = (real)(1 / (1 - dropout)), .grad_q = grad_q, .grad_k = grad_k,
                .grad_v = grad_v};
    long all = num_rows * slots;
    int64_t *start = calloc(num_keys + 2, sizeof(int64_t));
    int32_t *slot = malloc((all ? all : 1) * sizeof(int32_t));
    s.grad_score = malloc((all ? all : 1) * sizeof(real));
    int failed = !start || !slot || !s.grad_score;
    if (!failed) {
        run_queue(&s.queue, backward_rows, &s, num_rows, num_threads);
        for (long i = 0; i < all; i++) start[rows[i] < 0 ? 0 : (long)rows[i] + 2] += rows[i] >= 0; /* a counting sort */
        for (long key = 0; key < num_keys; key++) start[key + 2] += start[key + 1];
        for (long i = 0; i < all; i++)
            if (rows[i] >= 0) slot[start[(long)rows[i] + 1]++] = (int32_t)i;
        s.start = start;
        s.slot = slot;
        run_queue(&s.queue, backward_keys, &s, num_keys, num_threads);
    }
    free(start);
    free(slot);
    free(s.grad_score);
    return failed ? ENOMEM : 0;
}
