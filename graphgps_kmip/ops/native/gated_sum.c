/* The gates and gated means of GatedGCN, forward and backward, on a CPU (called by ops/gated_mean.py).
 *
 * Edges are visited in lists, one for each target, or for each source, in the order of the edges: no two threads add to
 * one row, results repeat bit for bit, and each row of an edge is read and written once in a pass.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "simd.h"
#include "threads.h"

#define NODES 64 /* that a thread takes at a time */
#define SOON 1   /* nodes from one that is computed to one whose edges are fetched */

typedef struct {
    const real *own, *other;        /* (N, 2 C): A x and D x; (M, 2 C): B x and E x */
    long own_row, other_row;        /* numbers from row to row of these, and of their gradients */
    const real *factor;             /* (E), or NULL */
    const int64_t *source, *target; /* (E) */
    const real *grad_out, *grad_gate; /* (N, C); (E, C), or NULL */
    const real *given;              /* (E, C): C e; may be where gate is */
    real *gate;                     /* (E, C): g */
    real *out, *mean, *inverse;     /* (N, C): result, weighted mean, 1 / (sum of weights + 1e-6) */
    real *grad_own, *grad_other, *grad_edge, *grad_factor;
    long num_edges, num_targets, num_sources;
    int dim;
    const int64_t *start;           /* (nodes + 1): where the list of each node begins in `list` */
    const int32_t *list;            /* (E): edges by node */
    Queue queue;
} Gated;

#define EACH_VECTOR for (int c = 0, count = g->dim; c < g->dim; c += LANES, count -= LANES)
#define LOAD(array, row) load_some(g->array + (long)(row) * g->dim + c, count)
#define OWN(array, row, half) (g->array + (long)(row) * g->own_row + (half) * g->dim + c)
#define OTHER(array, row, half) (g->array + (long)(row) * g->other_row + (half) * g->dim + c)
#define STORE(array, row, value) store_some(g->array + (long)(row) * g->dim + c, value, count)
#define FACTOR(edge) set1(g->factor ? g->factor[edge] : 1)
#define EACH_EDGE(node) \
    for (int64_t at = g->start[node], edge; at < g->start[(node) + 1] && (edge = g->list[at], 1); at++)
/* The rows of the edges of a node soon to come: in a list they lie anywhere. */
INLINE void fetch_rows(const Gated *g, const real *rows, long node) {
    if (!rows || node >= g->queue.items) return;
    for (int64_t at = g->start[node]; at < g->start[node + 1]; at++) {
        const char *row = (const char *)(rows + (long)g->list[at] * g->dim);
        for (size_t byte = 0; byte < g->dim * sizeof(real); byte += ALIGN) __builtin_prefetch(row + byte);
    }
}

#define EACH_NODE \
    for (long node, end; (node = take(&g->queue, NODES, &end)) < end;) \
        for (; node < end; node++)

/* g = C e + D x_i + E x_j, w = f sigmoid(g), mean_i = sum w B x_j / (sum w + 1e-6), out = A x_i + mean */
static void *forward_targets(void *argument) {
    Gated *g = argument;
    EACH_NODE {
        fetch_rows(g, g->given, node + SOON);
        EACH_VECTOR {
            vec own = load_some(OWN(own, node, 1), count);
            vec total = set1(0), sum = set1(0);
            EACH_EDGE(node) {
                vec gate = LOAD(given, edge) + own + load_some(OTHER(other, g->source[edge], 1), count);
                vec weight = FACTOR(edge) * sigmoid(gate);
                STORE(gate, edge, gate);
                sum = sum + weight;
                total = fma_(weight, load_some(OTHER(other, g->source[edge], 0), count), total);
            }
            vec inverse = set1(1) / (sum + set1((real)1e-6));
            STORE(inverse, node, inverse);
            STORE(mean, node, total * inverse);
            STORE(out, node, load_some(OWN(own, node, 0), count) + total * inverse);
        }
    }
    return NULL;
}

/* d total = grad / (sum + 1e-6), dw = d total (B x_j - mean), df = <s, dw>, dg = f s (1 - s) dw and the edge's own */
static void *backward_targets(void *argument) {
    Gated *g = argument;
    EACH_NODE {
        fetch_rows(g, g->gate, node + SOON);
        fetch_rows(g, g->grad_gate, node + SOON);
        EACH_VECTOR {
            vec grad = LOAD(grad_out, node), mean = LOAD(mean, node), sum = set1(0);
            vec grad_total = grad * LOAD(inverse, node);
            EACH_EDGE(node) {
                vec gate = LOAD(gate, edge), sigma = sigmoid(gate);
                vec grad_sigma = sigma * grad_total * (load_some(OTHER(other, g->source[edge], 0), count) - mean);
                vec result = FACTOR(edge) * grad_sigma * (set1(1) - sigma);
                if (g->grad_gate) result = result + LOAD(grad_gate, edge);
                STORE(grad_edge, edge, result);
                sum = sum + result;
                if (g->factor) g->grad_factor[edge] += sum_lanes(grad_sigma);
            }
            store_some(OWN(grad_own, node, 0), grad, count);
            store_some(OWN(grad_own, node, 1), sum, count);
        }
    }
    return NULL;
}

/* d B x_j = sum w d total, d E x_j = sum dg */
static void *backward_sources(void *argument) {
    Gated *g = argument;
    EACH_NODE {
        fetch_rows(g, g->gate, node + SOON);
        fetch_rows(g, g->grad_edge, node + SOON);
        EACH_VECTOR {
            vec value = set1(0), sum = set1(0);
            EACH_EDGE(node) {
                vec grad_total = LOAD(grad_out, g->target[edge]) * LOAD(inverse, g->target[edge]);
                value = fma_(FACTOR(edge) * sigmoid(LOAD(gate, edge)), grad_total, value);
                sum = sum + LOAD(grad_edge, edge);
            }
            store_some(OTHER(grad_other, node, 0), value, count);
            store_some(OTHER(grad_other, node, 1), sum, count);
        }
    }
    return NULL;
}

/* Sorts the edges by a node of theirs (a counting sort) and passes over the nodes. */
static int pass(Gated *g, const int64_t *key, long num_nodes, void *(*work)(void *), int num_threads) {
    int64_t *start = calloc(num_nodes + 2, sizeof(int64_t));
    int32_t *list = malloc((g->num_edges ? g->num_edges : 1) * sizeof(int32_t));
    int failed = !start || !list;
    if (!failed) {
        for (long e = 0; e < g->num_edges; e++) start[key[e] + 2]++;
        for (long i = 0; i < num_nodes; i++) start[i + 2] += start[i + 1];
        for (long e = 0; e < g->num_edges; e++) list[start[key[e] + 1]++] = (int32_t)e;
        g->start = start;
        g->list = list;
        atomic_store(&g->queue.next, 0);
        g->queue.items = num_nodes;
        run_parallel(work, g, num_threads);
    }
    free(start);
    free(list);
    return failed ? ENOMEM : 0;
}

static int inside(const int64_t *node, long num_edges, long num_nodes) {
    long outside = 0;
    for (long e = 0; e < num_edges; e++) outside += node[e] < 0 || node[e] >= num_nodes;
    return !outside;
}

/* Both return 0, or ENOMEM, the forward EINVAL for an edge whose ends are not there. */
int gated_forward(const real *own, const real *other, const real *given, const real *factor,
                  const int64_t *source, const int64_t *target, long num_edges, long num_targets, long num_sources,
                  long own_row, long other_row, int dim, int num_threads, real *gate, real *out, real *mean,
                  real *inverse) {
    Gated g = {.own = own, .other = other, .factor = factor, .source = source, .target = target,
               .given = given, .gate = gate, .out = out, .mean = mean, .inverse = inverse, .num_edges = num_edges,
               .num_targets = num_targets, .num_sources = num_sources, .own_row = own_row, .other_row = other_row,
               .dim = dim};
    if (!inside(source, num_edges, num_sources) || !inside(target, num_edges, num_targets)) return EINVAL;
    return pass(&g, target, num_targets, forward_targets, num_threads);
}

int gated_backward(const real *other, const real *factor, const int64_t *source,
                   const int64_t *target, long num_edges, long num_targets, long num_sources, long own_row,
                   long other_row, int dim, int num_threads, const real *grad_out, const real *grad_gate,
                   const real *gate, const real *mean,
                   const real *inverse, real *grad_own, real *grad_other, real *grad_edge, real *grad_factor) {
    Gated g = {.other = other, .factor = factor, .source = source, .target = target,
               .grad_out = grad_out, .grad_gate = grad_gate,
               .gate = (real *)gate, .mean = (real *)mean, .inverse = (real *)inverse, .grad_own = grad_own,
               .grad_other = grad_other, .grad_edge = grad_edge, .grad_factor = grad_factor, .num_edges = num_edges,
               .num_targets = num_targets, .num_sources = num_sources, .own_row = own_row, .other_row = other_row,
               .dim = dim};
    if (factor) memset(grad_factor, 0, num_edges * sizeof(real));
    return pass(&g, target, num_targets, backward_targets, num_threads) ||
                   pass(&g, source, num_sources, backward_sources, num_threads)
               ? ENOMEM
               : 0;
}
