/* Edges drawn into each node by their scores (called by data/edge_sampling.py), and the rows of a batch's layer (called
 * by data/layer_loader.py), on a CPU.
 *
 * Every number is computed by the same operations as in numpy there, each rounded by itself (-ffp-contract=off), so that
 * both draw the same edges.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "threads.h"

#define NODES 64 /* that a thread takes at a time */
#define FEW 12   /* edges that are found by passes over all keys rather than by a heap */
#define LANES 8  /* keys of a vector; after the last are some of no meaning */
#define SHORT 512 /* keys of which this is so */

enum { RESERVOIR, UNIFORM, LARGEST };

typedef struct {
    const int64_t *ptr, *nodes, *begin; /* (N+1); (n), or NULL: all; (n): where the ids of a node go */
    const float *score;                 /* (E) */
    int64_t *ids;
    int64_t k, max_degree;
    uint64_t base;
    double eps;
    int how, repeat;
    atomic_int failed;
    Queue queue;
} Draw;

static inline uint64_t mixed(uint64_t bits) {
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
    return bits ^ (bits >> 31);
}

#define GOLDEN 0x9E3779B97F4A7C15u

static inline double uniform_number(uint64_t state, int64_t place) {
    uint64_t bits = mixed(state + GOLDEN * ((uint64_t)place + 1));
    return ((double)(int64_t)(bits >> 11) + 0.5) * 0x1p-53;
}

/* -ln(u) of u = 2^e m, sqrt(1/2) <= m < sqrt(2): ln m = 2 artanh((m - 1) / (m + 1)), a series */
static inline double negative_log(double u) {
    int64_t bits, exponent;
    double m, s, z, series = 1.0 / 23;
    memcpy(&bits, &u, sizeof bits);
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52;
    bits -= exponent * ((int64_t)1 << 52);
    memcpy(&m, &bits, sizeof m);
    s = (m - 1) / (m + 1);
    z = s * s;
    series = series * z + 1.0 / 21;
    series = series * z + 1.0 / 19;
    series = series * z + 1.0 / 17;
    series = series * z + 1.0 / 15;
    series = series * z + 1.0 / 13;
    series = series * z + 1.0 / 11;
    series = series * z + 1.0 / 9;
    series = series * z + 1.0 / 7;
    series = series * z + 1.0 / 5;
    series = series * z + 1.0 / 3;
    series = series * z + 1.0;
    return -((double)exponent * 0x1.62E42FEFA39EFp-1 + (s + s) * series);
}

/* Keys as integers of the same order, which no rounding mode or sign of zero touches: the bits of a number above zero. */
static void make_keys(const Draw *d, uint64_t state, const float *score, int64_t degree, int64_t *key) {
    if (d->how == LARGEST)
        for (int64_t j = 0; j < degree; j++) {
            float value = score[j] + 0.0f; /* no negative zero */
            int32_t bits;
            memcpy(&bits, &value, sizeof bits);
            key[j] = -(int64_t)bits;
        }
    else if (d->how == UNIFORM)
        for (int64_t j = 0; j < degree; j++) {
            double value = uniform_number(state, j);
            memcpy(&key[j], &value, sizeof value);
        }
    else
        for (int64_t j = 0; j < degree; j++) {
            double value = negative_log(uniform_number(state, j)) / ((double)score[j] + d->eps);
            memcpy(&key[j], &value, sizeof value);
        }
}

/* Restores the order of a heap, largest first, whose top alone may be too small. */
static void sink(int64_t *heap, int64_t size, int64_t at) {
    int64_t value = heap[at];
    for (int64_t child; (child = 2 * at + 1) < size; at = child) {
        if (child + 1 < size && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= value) break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

/* The places of the k smallest keys in increasing order; of keys equal to the largest of them, the first. */
static void smallest(const int64_t *key, int64_t degree, int64_t k, int64_t *heap, int64_t first, int64_t *ids) {
    int64_t equal = k, filled = 0;
    memcpy(heap, key, k * sizeof(int64_t));
    for (int64_t at = k / 2; at-- > 0;) sink(heap, k, at);
    for (int64_t j = k; j < degree; j++)
        if (key[j] < heap[0]) {
            heap[0] = key[j];
            sink(heap, k, 0);
        }
    for (int64_t i = 0; i < k; i++) equal -= heap[i] < heap[0];
    for (int64_t j = 0; filled < k; j++)
        if (key[j] < heap[0] || (key[j] == heap[0] && equal-- > 0)) ids[filled++] = first + j;
}

/* The same of a few keys, without a branch that depends on them: 0 where keys are equal.
 *
 * A heap mispredicts a branch for about every key that enters it; passes over some ten vectors do not.
 */
static int few_smallest(int64_t *key, int64_t degree, int64_t k, int64_t first, int64_t *ids) {
    int64_t bound = INT64_MIN, count = 0, place[FEW + 1];
    for (int64_t j = degree; j % LANES; j++) key[j] = INT64_MAX;
    for (int64_t i = 0; i < k; i++) {
        int64_t least[LANES];
        for (int lane = 0; lane < LANES; lane++) least[lane] = INT64_MAX;
        for (int64_t j = 0; j < degree; j += LANES)
            for (int lane = 0; lane < LANES; lane++) {
                int64_t value = key[j + lane] > bound ? key[j + lane] : INT64_MAX;
                least[lane] = value < least[lane] ? value : least[lane];
            }
        for (int lane = 1; lane < LANES; lane++) least[0] = least[lane] < least[0] ? least[lane] : least[0];
        bound = least[0];
    }
    for (int64_t j = 0; j < degree; j++) count += key[j] <= bound;
    if (count != k) return 0;
    for (int64_t j = 0, filled = 0; j < degree; j++) {
        place[filled] = first + j;
        filled += key[j] <= bound;
    }
    memcpy(ids, place, k * sizeof(int64_t));
    return 1;
}

/* Fewer than k edges: the missing ones, with replacement. */
static void fill(const Draw *d, uint64_t state, const float *score, int64_t degree, int64_t first, int64_t *ids) {
    double total = 0;
    for (int64_t j = 0; j < degree; j++) total += (double)score[j] + d->eps;
    for (int64_t i = degree; i < d->k; i++) {
        double u = uniform_number(state, i), below = 0;
        int64_t j = 0;
        if (d->how == UNIFORM) {
            j = (int64_t)(u * (double)degree);
        } else {
            for (; j < degree; j++)
                if ((below += (double)score[j] + d->eps) > u * total) break;
        }
        ids[i] = first + (j < degree ? j : degree - 1);
    }
}

static void *draw_nodes(void *argument) {
    Draw *d = argument;
    int64_t k = d->k < d->max_degree ? d->k : d->max_degree;
    int64_t *key = malloc((d->max_degree + LANES + k) * sizeof(int64_t)), *heap = key + d->max_degree + LANES;
    if (!key) {
        atomic_store(&d->failed, 1);
        return NULL;
    }
    for (long row, end; (row = take(&d->queue, NODES, &end)) < end;)
        for (; row < end; row++) {
            int64_t node = d->nodes ? d->nodes[row] : row, first = d->ptr[node], degree = d->ptr[node + 1] - first;
            uint64_t state = mixed(d->base + GOLDEN * ((uint64_t)node + 1));
            int64_t *ids = d->ids + d->begin[row];
            if (degree > d->k) {
                make_keys(d, state, d->score + first, degree, key);
                if (d->k > FEW || degree > SHORT || !few_smallest(key, degree, d->k, first, ids))
                    smallest(key, degree, d->k, heap, first, ids);
                continue;
            }
            for (int64_t j = 0; j < degree; j++) ids[j] = first + j;
            if (d->repeat && degree > 0) fill(d, state, d->score + first, degree, first, ids);
        }
    free(key);
    return NULL;
}

/* Returns 0, or ENOMEM. Nodes must be those of the graph, ids as long as `begin` and the last node need. */
int draw_edges(const int64_t *ptr, const float *score, const int64_t *nodes, const int64_t *begin, int64_t num_nodes,
               int64_t max_degree, int64_t k, int how, int repeat, uint64_t base, double eps, int num_threads,
               int64_t *ids) {
    Draw d = {.ptr = ptr, .nodes = nodes, .begin = begin, .score = score, .ids = ids, .k = k, .max_degree = max_degree,
              .base = base, .eps = eps, .how = how, .repeat = repeat, .queue = {.items = num_nodes}};
    run_parallel(draw_nodes, &d, num_threads);
    return atomic_load(&d.failed) ? ENOMEM : 0;
}

#define WORD 64

/* The number of a node among those whose bits are set, in increasing order. */
static inline int64_t rank_of(const uint64_t *bits, const int64_t *rank, int64_t node) {
    uint64_t lower = bits[node / WORD] & (((uint64_t)1 << (node % WORD)) - 1);
    return rank[node / WORD] + __builtin_popcountll(lower);
}

/* Which row each source is: rows of `all_rows` are the given ones, then the other sources in increasing order.
 *
 * bits (zeros) and rank have an element for each 64 nodes; row_of, place and all_rows as many as they may need. Returns the
 * number of all rows.
 */
int64_t layer_rows(const int64_t *rows, int64_t num_rows, const int64_t *source, int64_t num_sources, int64_t num_words,
                   uint64_t *bits, int64_t *rank, int64_t *row_of, int64_t *all_rows, int64_t *place) {
    int64_t count = 0, next = num_rows;
    for (int64_t i = 0; i < num_rows; i++) bits[rows[i] / WORD] |= (uint64_t)1 << (rows[i] % WORD);
    for (int64_t e = 0; e < num_sources; e++) bits[source[e] / WORD] |= (uint64_t)1 << (source[e] % WORD);
    for (int64_t word = 0; word < num_words; word++) {
        rank[word] = count;
        count += __builtin_popcountll(bits[word]);
    }
    for (int64_t i = 0; i < count; i++) row_of[i] = -1;
    for (int64_t i = 0; i < num_rows; i++) {
        row_of[rank_of(bits, rank, rows[i])] = i;
        all_rows[i] = rows[i];
    }
    for (int64_t word = 0, i = 0; word < num_words; word++)
        for (uint64_t left = bits[word]; left; left &= left - 1, i++)
            if (row_of[i] < 0) {
                row_of[i] = next;
                all_rows[next++] = word * WORD + __builtin_ctzll(left);
            }
    for (int64_t e = 0; e < num_sources; e++) place[e] = row_of[rank_of(bits, rank, source[e])];
    return next;
}
