/* The gates and gated means of GatedGCN, forward and backward, on a CPU (called by ops/gated_mean.py).
 *
 * Edges are visited in lists, one for each target, or for each source, in the order of the edges: no two threads add to
 * one row, results repeat bit for bit, and each row of an edge is read and written once in a pass. With a batch norm of
 * the gates, its statistics are taken while gates are in the cache, and its gradient is never stored: half of the
 * memory traffic of norm, ReLU, dropout and residual as operations of torch.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "simd.h"
#include "threads.h"

#define NODES 64 /* that a thread takes at a time */
#define SOON 1   /* nodes from one that is computed to one whose edges are fetched */

typedef struct { /* up to `sums` as class _Arguments of ops/gated_mean.py */
    long num_edges, num_targets, num_sources;
    long target_row, source_row;    /* numbers from row to row of x_target and x_source, and of their gradients */
    long dim, num_threads;
    long batch_moments;             /* the moments of the norm are those of the gates, and written */
    double keep_scale, eps;
    const real *x_target, *x_source; /* (N, 2 C): A x and D x; (M, 2 C): B x and E x */
    const real *x_edge;             /* (E, C): C e; may be where gate is */
    const real *factor;             /* (E), or NULL */
    const int64_t *source, *target; /* (E) */
    real *gate;                     /* (E, C): g */
    real *out, *mean, *inverse;     /* (N, C): result, weighted mean, 1 / (sum of weights + 1e-6) */
    const real *grad_out;           /* (N, C) */
    const real *grad_edge;          /* (E, C): gradient of the new edges, or of g without a norm; or NULL */
    real *grad_x_target, *grad_x_source, *grad_gate, *grad_factor;
    /* new edges: [residual +] keep relu(g s + t), with s = w / sqrt(variance + eps) and t = b - mean s */
    const real *norm;               /* (2, C): w and b; NULL: no norm, and no new edges */
    const real *residual;           /* (E, C), or NULL */
    const uint8_t *keep;            /* (E, C): what dropout keeps, to be multiplied by keep_scale; or NULL */
    double *moments;                /* (2, C): mean and biased variance */
    real *affine;                   /* (2, C): s and t, written by the forward */
    real *edge, *grad_norm;         /* (E, C): new edges; (2, C): gradients of w and b */
    /* private */
    real *sums;                     /* (blocks, 2 C + 1): two sums of each block of gates, and their number */
    real *slopes;                   /* (2, C): the statistics add the first g + the second to the gradient of g */
    const int64_t *start;           /* (nodes + 1): where the list of each node begins in `list` */
    const int32_t *list;            /* (E): edges by node */
    Queue queue;
} Gated;

#define LOAD(array, row) load_some(g->array + (long)(row) * g->dim + c, count)
#define TARGET(array, row, half) (g->array + (long)(row) * g->target_row + (half) * g->dim + c)
#define SOURCE(array, row, half) (g->array + (long)(row) * g->source_row + (half) * g->dim + c)
#define STORE(array, row, value) store_some(g->array + (long)(row) * g->dim + c, value, count)
#define FACTOR(edge) set1(g->factor ? g->factor[edge] : 1)

/* Calls a function with each vector of the channels: the first, and how many it has. */
#define EACH_VECTOR(function, ...)                                                  \
    do {                                                                             \
        int c = 0;                                                                   \
        for (; c + LANES <= g->dim; c += LANES) function(__VA_ARGS__, c, LANES);     \
        if (c < g->dim) function(__VA_ARGS__, c, (int)g->dim - c);                   \
    } while (0)
/* No store can change a copy: its fields stay in registers. */
#define COPY(argument) Gated *all = argument; const Gated copy = *all, *g = &copy
#define EACH_NODE(first, end)                                                       \
    for (long first, end; (first = take(&all->queue, NODES, &end)) < end;)           \
        for (long node = first; node < end; node++)
#define EACH_EDGE(node) \
    for (int64_t at = g->start[node], edge; at < g->start[(node) + 1] && (edge = g->list[at], 1); at++)

/* The rows of the edges of a node soon to come: in a list they lie anywhere. */
INLINE void fetch_rows(const Gated *g, const real *rows, long node, long num_nodes) {
    if (!rows || node >= num_nodes) return;
    for (int64_t at = g->start[node]; at < g->start[node + 1]; at++) {
        const char *row = (const char *)(rows + (long)g->list[at] * g->dim);
        for (size_t byte = 0; byte < g->dim * sizeof(real); byte += ALIGN) __builtin_prefetch(row + byte);
    }
}

INLINE void add_gate(const Gated *g, real *sums, long edge, int c, int count) {
    store_some(sums + c, load_some(sums + c, count) + LOAD(gate, edge), count);
}

INLINE void add_square(const Gated *g, real *sums, real share, long edge, int c, int count) {
    vec away = fma_(load_some(sums + c, count), set1(-share), LOAD(gate, edge));
    real *square = sums + g->dim + c;
    store_some(square, fma_(away, away, load_some(square, count)), count);
}

/* Sum and squared distances from the mean of the gates of some nodes, which are in the cache. */
static void sum_gates(const Gated *g, long first, long end) {
    int64_t from = g->start[first], to = g->start[end];
    real *sums = g->sums + first / NODES * (2 * g->dim + 1), share = 1 / (real)(to > from ? to - from : 1);
    memset(sums, 0, 2 * g->dim * sizeof(real));
    sums[2 * g->dim] = (real)(to - from);
    for (int64_t at = from; at < to; at++) EACH_VECTOR(add_gate, g, sums, g->list[at]);
    for (int64_t at = from; at < to; at++) EACH_VECTOR(add_square, g, sums, share, g->list[at]);
}

/* g = C e + D x_i + E x_j, w = f sigmoid(g) */
INLINE void add_message(const Gated *g, long node, long edge, int c, int count) {
    vec gate = LOAD(x_edge, edge) + load_some(TARGET(x_target, node, 1), count);
    gate = gate + load_some(SOURCE(x_source, g->source[edge], 1), count);
    vec weight = FACTOR(edge) * sigmoid(gate);
    STORE(gate, edge, gate);
    STORE(inverse, node, LOAD(inverse, node) + weight);
    STORE(mean, node, fma_(weight, load_some(SOURCE(x_source, g->source[edge], 0), count), LOAD(mean, node)));
}

/* mean_i = sum w B x_j / (sum w + 1e-6), out = A x_i + mean */
INLINE void divide_sums(const Gated *g, long node, int c, int count) {
    vec inverse = set1(1) / (LOAD(inverse, node) + set1((real)1e-6)), mean = LOAD(mean, node) * inverse;
    STORE(inverse, node, inverse);
    STORE(mean, node, mean);
    STORE(out, node, load_some(TARGET(x_target, node, 0), count) + mean);
}

static void *forward_targets(void *argument) {
    COPY(argument);
    EACH_NODE(first, end) {
        fetch_rows(g, g->x_edge, node + SOON, g->num_targets);
        memset(g->mean + node * g->dim, 0, g->dim * sizeof(real));
        memset(g->inverse + node * g->dim, 0, g->dim * sizeof(real));
        EACH_EDGE(node) EACH_VECTOR(add_message, g, node, edge);
        EACH_VECTOR(divide_sums, g, node);
        if (g->sums && node == end - 1) sum_gates(g, first, end);
    }
    return NULL;
}

/* Mean and biased variance of each channel, joined as by Chan et al. 1979. */
static void join_statistics(Gated *g) {
    double *mean = g->moments, *variance = mean + g->dim, number = 0;
    memset(mean, 0, 2 * g->dim * sizeof(double));
    for (const real *sum = g->sums; number < g->num_edges; sum += 2 * g->dim + 1) {
        double more = sum[2 * g->dim], all = number + more;
        for (int c = 0; more > 0 && c < g->dim; c++) {
            double away = sum[c] / more - mean[c];
            mean[c] += away * more / all;
            variance[c] += sum[g->dim + c] + away * away * number * more / all;
        }
        number = all;
    }
    for (int c = 0; c < g->dim; c++) variance[c] /= number;
}

#define SCALE load_some(g->affine + c, count)
#define SHIFT load_some(g->affine + g->dim + c, count)

/* `keep` of an edge times its scale. */
INLINE vec load_kept(const Gated *g, long edge, int c, int count) {
    typedef uint8_t flags __attribute__((vector_size(sizeof(vec) / sizeof(real))));
    flags some = {0};
    const uint8_t *keep = g->keep + edge * g->dim + c;
    if (count >= LANES) __builtin_memcpy(&some, keep, sizeof some);
    else __builtin_memcpy(&some, keep, count);
    return __builtin_convertvector(some, vec) * set1((real)g->keep_scale);
}

INLINE void update_edge(const Gated *g, long edge, int c, int count) {
    vec new = max_(set1(0), fma_(LOAD(gate, edge), SCALE, SHIFT)); /* NaN stays NaN */
    if (g->keep) new = new * load_kept(g, edge, c, count);
    if (g->residual) new = new + LOAD(residual, edge);
    STORE(edge, edge, new);
}

static void *update_edges(void *argument) {
    COPY(argument);
    EACH_NODE(first, end) EACH_VECTOR(update_edge, g, node); /* of edges */
    return NULL;
}

/* The gradient of the norm's result: 0 where the ReLU is. */
INLINE vec load_gradient(const Gated *g, long edge, int c, int count, vec gate) {
    vec grad = LOAD(grad_edge, edge);
    if (g->keep) grad = grad * load_kept(g, edge, c, count);
    vec_bits zero = fma_(gate, SCALE, SHIFT) <= set1(0);
    return (vec)(~zero & (vec_bits)grad);
}

INLINE void add_gradient(const Gated *g, real *sums, long edge, int c, int count) {
    vec gate = LOAD(gate, edge), grad = load_gradient(g, edge, c, count, gate);
    real *product = sums + g->dim + c;
    store_some(sums + c, load_some(sums + c, count) + grad, count);
    store_some(product, fma_(grad, gate - load_some(g->slopes + c, count), load_some(product, count)), count);
}

/* Sums of d and of d (g - mean) in blocks of edges, d the gradient of the norm's result, the mean where slopes will be. */
static void *sum_gradients(void *argument) {
    COPY(argument);
    EACH_NODE(first, end) { /* of edges */
        real *sums = g->sums + first / NODES * (2 * g->dim + 1);
        if (node == first) memset(sums, 0, 2 * g->dim * sizeof(real));
        EACH_VECTOR(add_gradient, g, sums, node);
    }
    return NULL;
}

/* Gradients of w and b, and slopes: with z the normalised g, dg = s (d - mean(d) - z mean(d z)). */
static void join_gradients(Gated *g) {
    for (int c = 0; c < g->dim; c++) {
        double sum = 0, product = 0, inverse = 1 / sqrt(g->moments[g->dim + c] + g->eps), scale = g->norm[c] * inverse;
        for (long block = 0; block * NODES < g->num_edges; block++) {
            sum += g->sums[block * (2 * g->dim + 1) + c];
            product += g->sums[block * (2 * g->dim + 1) + g->dim + c];
        }
        double slope = g->batch_moments ? -scale * inverse * inverse * product / g->num_edges : 0;
        g->slopes[c] = (real)slope;
        g->slopes[g->dim + c] = (real)(g->batch_moments ? -scale * sum / g->num_edges - slope * g->moments[c] : 0);
        g->grad_norm[c] = (real)(product * inverse);
        g->grad_norm[g->dim + c] = (real)sum;
    }
}

/* d total = grad / (sum + 1e-6), dw = d total (B x_j - mean), df = <s, dw>, dg = f s (1 - s) dw + that of new edges */
INLINE void add_target_gradient(const Gated *g, long node, long edge, int c, int count) {
    vec gate = LOAD(gate, edge), sigma = sigmoid(gate), grad_total = LOAD(grad_out, node) * LOAD(inverse, node);
    vec away = load_some(SOURCE(x_source, g->source[edge], 0), count) - LOAD(mean, node);
    vec grad_sigma = sigma * grad_total * away, grad = FACTOR(edge) * grad_sigma * (set1(1) - sigma);
    if (g->slopes) {
        vec slope = load_some(g->slopes + c, count), offset = load_some(g->slopes + g->dim + c, count);
        grad = grad + fma_(SCALE, load_gradient(g, edge, c, count, gate), fma_(slope, gate, offset));
    } else if (g->grad_edge) {
        grad = grad + LOAD(grad_edge, edge);
    }
    STORE(grad_gate, edge, grad);
    store_some(TARGET(grad_x_target, node, 1), load_some(TARGET(grad_x_target, node, 1), count) + grad, count);
    if (g->factor) g->grad_factor[edge] += sum_lanes(grad_sigma);
}

static void *backward_targets(void *argument) {
    COPY(argument);
    EACH_NODE(first, end) {
        fetch_rows(g, g->gate, node + SOON, g->num_targets);
        fetch_rows(g, g->grad_edge, node + SOON, g->num_targets);
        real *grad_target = g->grad_x_target + node * g->target_row;
        memcpy(grad_target, g->grad_out + node * g->dim, g->dim * sizeof(real));
        memset(grad_target + g->dim, 0, g->dim * sizeof(real));
        EACH_EDGE(node) EACH_VECTOR(add_target_gradient, g, node, edge);
    }
    return NULL;
}

/* d B x_j = sum w d total, d E x_j = sum dg */
INLINE void add_source_gradient(const Gated *g, long node, long edge, int c, int count) {
    vec grad_total = LOAD(grad_out, g->target[edge]) * LOAD(inverse, g->target[edge]);
    vec value = FACTOR(edge) * sigmoid(LOAD(gate, edge));
    real *grad_value = SOURCE(grad_x_source, node, 0), *grad_sum = SOURCE(grad_x_source, node, 1);
    store_some(grad_value, fma_(value, grad_total, load_some(grad_value, count)), count);
    store_some(grad_sum, load_some(grad_sum, count) + LOAD(grad_gate, edge), count);
}

static void *backward_sources(void *argument) {
    COPY(argument);
    EACH_NODE(first, end) {
        fetch_rows(g, g->gate, node + SOON, g->num_sources);
        fetch_rows(g, g->grad_gate, node + SOON, g->num_sources);
        memset(g->grad_x_source + node * g->source_row, 0, 2 * g->dim * sizeof(real));
        EACH_EDGE(node) EACH_VECTOR(add_source_gradient, g, node, edge);
    }
    return NULL;
}

static void run(Gated *g, void *(*work)(void *), long items) {
    atomic_store(&g->queue.next, 0);
    g->queue.items = items;
    run_parallel(work, g, (int)g->num_threads);
}

/* Sorts the edges by a node of theirs (a counting sort) and passes over the nodes. */
static int pass(Gated *g, const int64_t *key, long num_nodes, void *(*work)(void *)) {
    int64_t *start = calloc(num_nodes + 2, sizeof(int64_t));
    int32_t *list = malloc((g->num_edges ? g->num_edges : 1) * sizeof(int32_t));
    int failed = !start || !list;
    if (!failed) {
        for (long e = 0; e < g->num_edges; e++) start[key[e] + 2]++;
        for (long i = 0; i < num_nodes; i++) start[i + 2] += start[i + 1];
        for (long e = 0; e < g->num_edges; e++) list[start[key[e] + 1]++] = (int32_t)e;
        g->start = start;
        g->list = list;
        run(g, work, num_nodes);
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

static Gated read_arguments(const Gated *arguments) {
    Gated g = {0};
    memcpy(&g, arguments, offsetof(Gated, sums));
    return g;
}

static real *allocate_sums(const Gated *g, long items) {
    return malloc((items / NODES + 1) * (2 * g->dim + 1) * sizeof(real));
}

/* Both return 0, or ENOMEM, the forward EINVAL for an edge whose source or target is no node. */
int gated_forward(const Gated *arguments) {
    Gated g = read_arguments(arguments);
    if (!inside(g.source, g.num_edges, g.num_sources) || !inside(g.target, g.num_edges, g.num_targets)) return EINVAL;
    int statistics = g.norm && g.batch_moments;
    if (statistics && !(g.sums = allocate_sums(&g, g.num_targets))) return ENOMEM;
    int failed = pass(&g, g.target, g.num_targets, forward_targets);
    if (statistics && !failed) join_statistics(&g);
    free(g.sums);
    if (!g.norm || failed) return failed;
    for (int c = 0; c < g.dim; c++) {
        double scale = g.norm[c] / sqrt(g.moments[g.dim + c] + g.eps);
        g.affine[c] = (real)scale;
        g.affine[g.dim + c] = (real)(g.norm[g.dim + c] - g.moments[c] * scale);
    }
    run(&g, update_edges, g.num_edges);
    return 0;
}

int gated_backward(const Gated *arguments) {
    Gated g = read_arguments(arguments);
    if (g.factor) memset(g.grad_factor, 0, g.num_edges * sizeof(real));
    if (g.norm && g.grad_edge) {
        g.sums = allocate_sums(&g, g.num_edges);
        g.slopes = malloc(2 * g.dim * sizeof(real));
    }
    int failed = g.norm && g.grad_edge && (!g.sums || !g.slopes);
    if (!failed && g.slopes) {
        for (int c = 0; c < g.dim; c++) g.slopes[c] = (real)g.moments[c];
        run(&g, sum_gradients, g.num_edges);
        join_gradients(&g);
    }
    failed = failed || pass(&g, g.target, g.num_targets, backward_targets) ||
             pass(&g, g.source, g.num_sources, backward_sources);
    free(g.sums);
    free(g.slopes);
    return failed ? ENOMEM : 0;
}
