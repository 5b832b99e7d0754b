/* Messages of GINE, forward and backward, on a CPU (called by mpnn/relu_messages.py).
 *
 * Each thread walks all edges in their order for some channels of its own: nothing is sorted, no two threads add to one
 * number, and results repeat bit for bit on any number of threads.
 */
#include <errno.h>

#include "simd.h"
#include "threads.h"

#define LINE (64 / (int)sizeof(real)) /* numbers of a cache line */

typedef struct {
    const real *x, *edge, *grad;    /* (M, C), (E, C), (N, C) */
    const int64_t *source, *target; /* (E) */
    real *out;                      /* (N, C), to which messages are added */
    real *grad_x, *grad_edge;       /* (M, C), to which gradients are added; (E, C) */
    long num_edges;
    int dim, step;                  /* C; channels of a thread */
    Queue queue;
} Messages;

#define EACH_PART(first, last)                                                \
    for (long part, end; (part = take(&m->queue, 1, &end)) < end;)            \
        for (int first = (int)part * m->step, once = 1,                       \
                 last = first + m->step < m->dim ? first + m->step : m->dim; once; once = 0)

/* out_t += relu(x_s + e); a NaN stays one */
static void *add_messages(void *argument) {
    Messages *m = argument;
    EACH_PART(first, last)
        for (long e = 0; e < m->num_edges; e++) {
            const real *restrict x = m->x + m->source[e] * m->dim, *restrict edge = m->edge + e * m->dim;
            real *restrict out = m->out + m->target[e] * m->dim;
            for (int c = first; c < last; c++) {
                real message = x[c] + edge[c];
                out[c] += message <= 0 ? 0 : message;
            }
        }
    return NULL;
}

/* de = grad_t where the message was above 0, dx_s += de */
static void *add_gradients(void *argument) {
    Messages *m = argument;
    EACH_PART(first, last)
        for (long e = 0; e < m->num_edges; e++) {
            const real *restrict x = m->x + m->source[e] * m->dim, *restrict edge = m->edge + e * m->dim;
            const real *restrict grad = m->grad + m->target[e] * m->dim;
            real *restrict grad_x = m->grad_x + m->source[e] * m->dim, *restrict grad_edge = m->grad_edge + e * m->dim;
            for (int c = first; c < last; c++) {
                real passed = x[c] + edge[c] <= 0 ? 0 : grad[c];
                grad_edge[c] = passed;
                grad_x[c] += passed;
            }
        }
    return NULL;
}

static void run(Messages *m, void *(*work)(void *), int num_threads) {
    int lines = (m->dim + LINE - 1) / LINE;
    m->step = (lines + num_threads - 1) / num_threads * LINE;
    atomic_store(&m->queue.next, 0);
    m->queue.items = (m->dim + m->step - 1) / m->step;
    run_parallel(work, m, num_threads);
}

/* Returns 0, or EINVAL for an edge whose ends are not there. */
int messages_forward(const real *x, const real *edge, const int64_t *source, const int64_t *target, long num_edges,
                     long num_sources, long num_targets, int dim, int num_threads, real *out) {
    Messages m = {.x = x, .edge = edge, .source = source, .target = target, .num_edges = num_edges, .dim = dim,
                  .out = out};
    for (long e = 0; e < num_edges; e++)
        if (source[e] < 0 || source[e] >= num_sources || target[e] < 0 || target[e] >= num_targets) return EINVAL;
    run(&m, add_messages, num_threads);
    return 0;
}

void messages_backward(const real *x, const real *edge, const real *grad, const int64_t *source,
                       const int64_t *target, long num_edges, int dim, int num_threads, real *grad_x,
                       real *grad_edge) {
    Messages m = {.x = x, .edge = edge, .grad = grad, .source = source, .target = target, .num_edges = num_edges,
                  .dim = dim, .grad_x = grad_x, .grad_edge = grad_edge};
    run(&m, add_gradients, num_threads);
}
