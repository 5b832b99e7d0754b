/* Scores, weights and sums of GRIT's attention over complete pairs, forward and backward, on a CPU (called by
 * ops/grit_operator.py, whose products of matrices stand around it).
 *
 * A unit is some queries of one graph with all its nodes as keys. It is computed by one thread, and what units add to
 * the same row has a place for each, so that results repeat bit for bit on any number of threads.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "simd.h"
#include "threads.h"

#define EACH_VECTOR for (int c = 0, count = heads * dim; c < heads * dim; c += LANES, count -= LANES)
#define LOAD(array) load_some((array) + c, count)
#define STORE(array, value) store_some((array) + c, value, count)

typedef struct {
    int64_t query, queries, key, keys; /* first query and number of them, first key and number of them */
    int64_t pair, sums;                /* rows of the first pair, and of the sums over queries of the first key */
} Unit;

typedef struct { /* as class _Arguments of ops/grit_operator.py; R pairs of a query and a key in a row */
    long num_units, heads, dim, relu, num_threads; /* H, D; C = H D */
    double clamp, keep_scale;
    const Unit *units;
    const real *q, *k, *v;     /* (N, C) */
    const real *map, *bias;    /* (C): weights of scores in their head's logit; (2 C): of factor and summand */
    real *scores;              /* (R, 2 C): factor and summand; the forward adds the bias, and replaces the latter by s */
    real *logit, *weight;      /* (R, H): before the clamp; after the softmax, before dropout */
    const uint8_t *keep;       /* (R, H): weights that dropout keeps, times keep_scale; or NULL */
    real *values, *rows;       /* (N, C): sums over keys of weights times v, and times s */
    const real *grad_values, *grad_rows; /* (N, C) */
    const real *grad_s;        /* (R, C): from the new pair features, or NULL */
    real *grad_scores;         /* (R, 2 C): of factor and summand */
    real *grad_q;              /* (N, C) */
    real *grad_k, *grad_v;     /* (rows of sums, C) */
    real *grad_map;            /* (units, C) */
    /* private */
    atomic_int failed;
    Queue queue;
} Grit;

INLINE real used_weight(const Grit *g, long entry, real weight) {
    return !g->keep ? weight : g->keep[entry] ? weight * (real)g->keep_scale : 0;
}

#define SIGN ((vec_bits)set1((real)-0.0))

INLINE vec absolute_root(vec a) {
    a = (vec)((vec_bits)a & ~SIGN);
#ifdef OF
    return OF(sqrt)(a);
#else
    for (int i = 0; i < LANES; i++) a[i] = sqrt(a[i]);
    return a;
#endif
}

/* The sum of the channels of each head. */
INLINE void sum_heads(const real *terms, real *sums, int heads, int dim) {
    for (int h = 0; h < heads; h++, terms += dim) {
        real chains[ROWS] = {0}, sum = 0;
        int d = 0;
        for (; d + ROWS <= dim; d += ROWS)
            for (int i = 0; i < ROWS; i++) chains[i] += terms[d + i];
        for (; d < dim; d++) sum += terms[d];
        if (dim >= ROWS)
            sum += ((chains[0] + chains[4]) + (chains[2] + chains[6])) + ((chains[1] + chains[5]) + (chains[3] + chains[7]));
        sums[h] = sum;
    }
}

/* A number of each head at each of its channels. */
INLINE void expand(const real *numbers, real *channels, int heads, int dim) {
    for (int h = 0; h < heads; h++, channels += dim)
        for (int d = 0; d < dim; d++) channels[d] = numbers[h];
}

/* s = relu(root((q + k) f) + g) with root(x) = sign(x) sqrt(|x|), and its sum in each head, weighted by the map. */
INLINE void score_pair(const Grit *g, const real *q, const real *k, real *factor, real *s, real *logit, real *terms,
                       int heads, int dim) {
    EACH_VECTOR {
        vec multiplier = LOAD(factor) + LOAD(g->bias), product = (LOAD(q) + LOAD(k)) * multiplier;
        vec root = (vec)((vec_bits)absolute_root(product) | (SIGN & (vec_bits)product));
        vec score = root + (LOAD(s) + LOAD(g->bias + heads * dim));
        STORE(factor, multiplier);
        if (g->relu) score = max_(set1(0), score); /* NaN stays NaN */
        STORE(s, score);
        STORE(terms, score * LOAD(g->map));
    }
    sum_heads(terms, logit, heads, dim);
}

/* The softmax over the keys, of each head, of logits that are clamped: weights sum to 1. */
INLINE void softmax(const Grit *g, const real *logit, real *weight, long keys, int heads) {
    real limit = (real)g->clamp;
    for (int first = 0; first < heads; first += LANES) {
        int count = heads - first;
        vec top = set1(-INFINITY), sum = set1(0);
        for (long j = 0; j < keys; j++) {
            vec z = load_some(logit + j * heads + first, count);
            vec_bits high = z > set1(limit), low = z < set1(-limit);
            z = (vec)((high & (vec_bits)set1(limit)) | (low & (vec_bits)set1(-limit)) | (~(high | low) & (vec_bits)z));
            store_some(weight + j * heads + first, z, count);
            top = max_(top, z);
        }
        for (long j = 0; j < keys; j++) {
            vec power = exp_(load_some(weight + j * heads + first, count) - top);
            store_some(weight + j * heads + first, power, count);
            sum = sum + power;
        }
        for (long j = 0; j < keys; j++)
            store_some(weight + j * heads + first, load_some(weight + j * heads + first, count) / sum, count);
    }
}

/* The weights of a pair, after dropout, at each channel. */
INLINE void expand_weights(const Grit *g, long pair, real *weight, real *channels, int heads, int dim) {
    for (int h = 0; h < heads; h++) weight[h] = used_weight(g, pair * heads + h, g->weight[pair * heads + h]);
    expand(weight, channels, heads, dim);
}

INLINE void forward_query(const Grit *g, const Unit *unit, long number, real *memory, int heads, int dim) {
    long width = (long)heads * dim, query = unit->query + number, first = unit->pair + number * unit->keys;
    real *values = g->values + query * width, *rows = g->rows + query * width, *terms = memory, *weight = terms + width;
    for (long j = 0; j < unit->keys; j++) {
        real *scores = g->scores + (first + j) * 2 * width;
        score_pair(g, g->q + query * width, g->k + (unit->key + j) * width, scores, scores + width,
                   g->logit + (first + j) * heads, terms, heads, dim);
    }
    softmax(g, g->logit + first * heads, g->weight + first * heads, unit->keys, heads);
    memset(values, 0, width * sizeof(real));
    memset(rows, 0, width * sizeof(real));
    for (long j = 0; j < unit->keys; j++) {
        const real *s = g->scores + (first + j) * 2 * width + width, *v = g->v + (unit->key + j) * width;
        expand_weights(g, first + j, weight, terms, heads, dim);
        EACH_VECTOR {
            STORE(values, fma_(LOAD(terms), LOAD(v), LOAD(values)));
            STORE(rows, fma_(LOAD(terms), LOAD(s), LOAD(rows)));
        }
    }
}

/* dw = <g, v> + <r, s>, dz = w (dw - sum w dw), 0 where the clamp holds; ds = r w + dz map [+ that of new pairs], 0
 * where the ReLU is; with t = q + k and x = t f: dx = ds / (2 sqrt|x|), 0 at 0; df = dx t, dt = dx f. */
INLINE void backward_query(const Grit *g, const Unit *unit, long number, real *memory, int heads, int dim) {
    long width = (long)heads * dim, query = unit->query + number, first = unit->pair + number * unit->keys;
    const real *q = g->q + query * width;
    const real *grad_values = g->grad_values + query * width, *grad_rows = g->grad_rows + query * width;
    real *grad_q = g->grad_q + query * width, *grad_map = g->grad_map + (unit - g->units) * width;
    real *weights = memory, *slopes = weights + width, *number_of_head = slopes + width, *total = number_of_head + heads;
    real *grad_weight = total + heads, limit = (real)g->clamp;
    memset(grad_q, 0, width * sizeof(real));
    memset(total, 0, heads * sizeof(real));
    for (long j = 0; j < unit->keys; j++) {
        const real *s = g->scores + (first + j) * 2 * width + width, *v = g->v + (unit->key + j) * width;
        real *sums = grad_weight + j * heads;
        EACH_VECTOR STORE(weights, fma_(LOAD(grad_values), LOAD(v), LOAD(grad_rows) * LOAD(s)));
        sum_heads(weights, sums, heads, dim);
        for (int h = 0; h < heads; h++) {
            sums[h] = used_weight(g, (first + j) * heads + h, sums[h]);
            total[h] = MULTIPLY_ADD(g->weight[(first + j) * heads + h], sums[h], total[h]);
        }
    }
    for (long j = 0; j < unit->keys; j++) {
        long pair = first + j;
        const real *factor = g->scores + pair * 2 * width, *s = factor + width, *k = g->k + (unit->key + j) * width;
        const real *grad_s = g->grad_s ? g->grad_s + pair * width : NULL;
        real *grad_factor = g->grad_scores + pair * 2 * width, *grad_summand = grad_factor + width;
        real *grad_k = g->grad_k + (unit->sums + j) * width, *grad_v = g->grad_v + (unit->sums + j) * width;
        expand_weights(g, pair, number_of_head, weights, heads, dim);
        for (int h = 0; h < heads; h++) {
            real logit = g->logit[pair * heads + h], away = grad_weight[j * heads + h] - total[h];
            number_of_head[h] = logit > limit || logit < -limit ? 0 : g->weight[pair * heads + h] * away;
        }
        expand(number_of_head, slopes, heads, dim);
        EACH_VECTOR {
            vec slope = LOAD(slopes), weight = LOAD(weights), score = LOAD(s), sum = LOAD(q) + LOAD(k);
            vec grad = fma_(weight, LOAD(grad_rows), slope * LOAD(g->map));
            if (grad_s) grad = grad + LOAD(grad_s);
            if (g->relu) grad = (vec)(~(score <= set1(0)) & (vec_bits)grad);
            vec root = absolute_root(sum * LOAD(factor));
            vec grad_product = (vec)(~(root == set1(0)) & (vec_bits)(grad / (root + root)));
            STORE(grad_map, fma_(slope, score, LOAD(grad_map)));
            STORE(grad_v, fma_(weight, LOAD(grad_values), LOAD(grad_v)));
            STORE(grad_factor, grad_product * sum);
            STORE(grad_summand, grad);
            vec grad_sum = grad_product * LOAD(factor);
            STORE(grad_q, LOAD(grad_q) + grad_sum);
            STORE(grad_k, LOAD(grad_k) + grad_sum);
        }
    }
}

/* Heads of 8 channels, and 8 of them, are those of most public files. */
#define EACH_QUERY(function)                                                                        \
    for (long i = 0; i < unit->queries; i++) {                                                     \
        if (g->dim == 8 && g->heads == 8) function(g, unit, i, memory, 8, 8);                      \
        else function(g, unit, i, memory, (int)g->heads, (int)g->dim);                             \
    }

static real *allocate(Grit *g, const Unit *unit) {
    real *memory = malloc((2 * g->heads * g->dim + (2 + unit->keys) * g->heads) * sizeof(real));
    if (!memory) atomic_store(&g->failed, 1);
    return memory;
}

static void *forward_units(void *argument) {
    Grit *g = argument;
    for (long first, end; (first = take(&g->queue, 1, &end)) < end;) {
        const Unit *unit = g->units + first;
        real *memory = allocate(g, unit);
        if (!memory) return NULL;
        EACH_QUERY(forward_query)
        free(memory);
    }
    return NULL;
}

static void *backward_units(void *argument) {
    Grit *g = argument;
    size_t width = g->heads * g->dim;
    for (long first, end; (first = take(&g->queue, 1, &end)) < end;) {
        const Unit *unit = g->units + first;
        real *memory = allocate(g, unit);
        if (!memory) return NULL;
        memset(g->grad_map + first * width, 0, width * sizeof(real));
        memset(g->grad_k + unit->sums * width, 0, unit->keys * width * sizeof(real));
        memset(g->grad_v + unit->sums * width, 0, unit->keys * width * sizeof(real));
        EACH_QUERY(backward_query)
        free(memory);
    }
    return NULL;
}

static int run(Grit *g, void *(*work)(void *)) {
    atomic_store(&g->failed, 0);
    run_queue(&g->queue, work, g, g->num_units, (int)g->num_threads);
    return atomic_load(&g->failed) ? ENOMEM : 0;
}

/* Both return 0, or ENOMEM. */
int grit_forward(Grit *g) { return run(g, forward_units); }

int grit_backward(Grit *g) { return run(g, backward_units); }
