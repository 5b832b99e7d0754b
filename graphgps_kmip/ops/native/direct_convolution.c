/* Circular convolutions of small graphs by sums over all places, and gates between them, forward and backward, on a CPU
 * (called by ops/circular_convolution.py).
 *
 * A thread takes all graphs of one size and LANES channels of them: no two threads add to one filter, and results repeat
 * bit for bit. A filter is there twice in a row, its "ring", so that no sum wraps around.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "simd.h"
#include "threads.h"

#define BLOCK 4 /* outputs, and inputs, that are in registers at a time */

typedef struct {
    const real *values;   /* (N, (gates + 1) C): gates, then what is convolved */
    const real *filters;  /* (sum of sizes, K C) */
    const real *grad_out; /* (N, C); NULL: forward */
    real *out, *grad_values, *grad_filters;
    const int64_t *size;  /* (S) */
    const int64_t *first; /* (S + 1): where the graphs of each size begin in `start` */
    const int64_t *start; /* (B): first node of each graph */
    long num_sizes, largest;
    int dim, num_filters, num_gates, gate_first;
    Queue queue;
    atomic_int failed;
} Direct;

/* Of one size and LANES channels; each array has LANES numbers for each place. */
typedef struct {
    char *memory;
    real *ring, *back;          /* filters forwards and backwards, `ring_size` each */
    real *own_ring;             /* what was convolved, backwards */
    real *value, *convolved;    /* before and after each convolution, `places` each, one value more */
    real *grad, *sum, *grad_filter;
    long places, ring_size;     /* numbers of one array */
} Scratch;

static int make_scratch(const Direct *d, Scratch *s) {
    long n = (d->largest + BLOCK - 1) / BLOCK * BLOCK, k = d->num_filters;
    s->places = n * LANES;
    s->ring_size = (2 * d->largest + 2 * BLOCK) * LANES;
    size_t rings = (2 * k + 1) * s->ring_size, arrays = (3 * k + 3) * s->places;
    if (!(s->memory = malloc((rings + arrays) * sizeof(real) + ALIGN))) return ENOMEM;
    char *at = s->memory;
    s->ring = carve(&at, (rings + arrays) * sizeof(real));
    s->back = s->ring + k * s->ring_size;
    s->own_ring = s->back + k * s->ring_size;
    s->value = s->own_ring + s->ring_size;
    s->convolved = s->value + (k + 1) * s->places;
    s->grad_filter = s->convolved + k * s->places;
    s->grad = s->grad_filter + k * s->places;
    s->sum = s->grad + s->places;
    return 0;
}

/* One column of LANES channels: its first number, the numbers from row to row, and how many channels there are. */
typedef struct {
    real *at;
    long row;
    int count;
} Column;

#define EACH_PLACE(n) for (long t = 0; t < (n); t++)
INLINE vec get(Column c, long t) { return load_some(c.at + t * c.row, c.count); }
INLINE void put(Column c, long t, vec a) { store_some(c.at + t * c.row, a, c.count); }
INLINE vec times(vec a, int is_gated, Column gate, long t) {
    if (is_gated) a = a * get(gate, t);
    return a;
}
INLINE vec at(const real *x, long t) { return load(x + t * LANES); }
INLINE void to(real *x, long t, vec a) { store(x + t * LANES, a); }

/* Zeros after the last place, which a block reads. */
INLINE void end_with_zeros(real *x, long n) {
    for (long t = n; t % BLOCK; t++) to(x, t, set1(0));
}

/* ring[BLOCK + j] = taps[j mod n], or taps[-j mod n], for -BLOCK <= j < 2 n + BLOCK */
static void fill_ring(real *restrict ring, const real *restrict taps, long n, int backwards) {
    long tap = (n - BLOCK % n) % n;
    if (backwards) tap = (n - tap) % n;
    EACH_PLACE(2 * n + 2 * BLOCK) {
        to(ring, t, at(taps, tap));
        if (backwards) tap = tap ? tap - 1 : n - 1;
        else tap = tap + 1 < n ? tap + 1 : 0;
    }
}

/* y_t = sum_i x_i ring[BLOCK + n + t - i], with zeros in x up to a whole block; y is written up to a whole block */
static void convolve(const real *restrict x, const real *restrict ring, long n, real *restrict y) {
    for (long t = 0; t < n; t += BLOCK) {
        vec sum[BLOCK], tap[2 * BLOCK - 1];
        UNROLL
        for (int r = 0; r < BLOCK; r++) sum[r] = set1(0);
        for (long i = 0; i < n; i += BLOCK) {
            UNROLL
            for (int j = 0; j < 2 * BLOCK - 1; j++) tap[j] = at(ring, n + t - i + 1 + j);
            UNROLL
            for (int s = 0; s < BLOCK; s++) {
                vec value = at(x, i + s);
                UNROLL
                for (int r = 0; r < BLOCK; r++) sum[r] = fma_(value, tap[r - s + BLOCK - 1], sum[r]);
            }
        }
        UNROLL
        for (int r = 0; r < BLOCK; r++) to(y, t + r, sum[r]);
    }
}

/* Gate q of a graph, or what it convolves (q = num_gates), or the gradient of one of them. */
INLINE Column part_of(const Direct *d, const real *values, long start, int q, int channel, int count) {
    long row = (long)(d->num_gates + 1) * d->dim;
    return (Column){(real *)values + start * row + (long)q * d->dim + channel, row, count};
}

#define GATE(q) part_of(d, d->values, start, q, channel, count)
#define GRAD(q) part_of(d, d->grad_values, start, q, channel, count)
#define OUT(array) ((Column){(real *)(array) + start * d->dim + channel, d->dim, count})

/* The values before and after each convolution. */
static void through(const Direct *d, Scratch *s, long start, long n, int channel, int count) {
    Column value = GATE(d->num_gates), first = GATE(0);
    EACH_PLACE(n) to(s->value, t, times(get(value, t), d->gate_first, first, t));
    for (int k = 0; k < d->num_filters; k++) {
        real *convolved = s->convolved + k * s->places, *next = s->value + (k + 1) * s->places;
        Column gate = GATE(k + d->gate_first);
        end_with_zeros(s->value + k * s->places, n);
        convolve(s->value + k * s->places, s->ring + k * s->ring_size, n, convolved);
        EACH_PLACE(n) to(next, t, times(at(convolved, t), d->num_gates, gate, t));
    }
}

/* With y = f * x: dx = (f backwards) * dy, df = (x backwards) * dy; with v = p y: dp = y dv, dy = p dv. */
static void backward(const Direct *d, Scratch *s, long start, long n, int channel, int count) {
    Column grad_out = OUT(d->grad_out), of_value = GRAD(d->num_gates);
    EACH_PLACE(n) to(s->grad, t, get(grad_out, t));
    for (int k = d->num_filters - 1; k >= 0; k--) {
        real *of_filter = s->grad_filter + k * s->places;
        if (d->num_gates) {
            Column gate = GATE(k + d->gate_first), of_gate = GRAD(k + d->gate_first);
            EACH_PLACE(n) {
                vec grad = at(s->grad, t);
                put(of_gate, t, at(s->convolved + k * s->places, t) * grad);
                to(s->grad, t, get(gate, t) * grad);
            }
        }
        end_with_zeros(s->grad, n);
        fill_ring(s->own_ring, s->value + k * s->places, n, 1);
        convolve(s->grad, s->own_ring, n, s->sum);
        EACH_PLACE(n) to(of_filter, t, at(of_filter, t) + at(s->sum, t));
        convolve(s->grad, s->back + k * s->ring_size, n, s->sum);
        EACH_PLACE(n) to(s->grad, t, at(s->sum, t));
    }
    Column value = GATE(d->num_gates), first = GATE(0), of_first = GRAD(0);
    EACH_PLACE(n) {
        vec grad = at(s->grad, t);
        if (d->gate_first) put(of_first, t, grad * get(value, t));
        put(of_value, t, times(grad, d->gate_first, first, t));
    }
}

/* All graphs of one size, whose filters begin at `row`. */
static void one_size(const Direct *d, Scratch *s, long which, int64_t row, int channel, int count) {
    long n = d->size[which], width = (long)d->num_filters * d->dim;
    for (int k = 0; k < d->num_filters; k++) {
        Column taps = {(real *)d->filters + row * width + (long)k * d->dim + channel, width, count};
        EACH_PLACE(n) to(s->sum, t, get(taps, t));
        fill_ring(s->ring + k * s->ring_size, s->sum, n, 0);
        if (d->grad_out) fill_ring(s->back + k * s->ring_size, s->sum, n, 1);
    }
    memset(s->grad_filter, 0, (size_t)d->num_filters * s->places * sizeof(real));
    for (long graph = d->first[which]; graph < d->first[which + 1]; graph++) {
        long start = d->start[graph];
        through(d, s, start, n, channel, count);
        if (d->grad_out) backward(d, s, start, n, channel, count);
        else EACH_PLACE(n) put(OUT(d->out), t, at(s->value + d->num_filters * s->places, t));
    }
    for (int k = 0; d->grad_out && k < d->num_filters; k++) {
        Column taps = {d->grad_filters + row * width + (long)k * d->dim + channel, width, count};
        EACH_PLACE(n) put(taps, t, at(s->grad_filter + k * s->places, t));
    }
}

static void *work(void *argument) {
    Direct *d = argument;
    Scratch s;
    long unit, end, blocks = (d->dim + LANES - 1) / LANES;
    if (make_scratch(d, &s)) {
        atomic_store(&d->failed, ENOMEM);
        return NULL;
    }
    while ((unit = take(&d->queue, 1, &end)) < end) {
        long which = d->num_sizes - 1 - unit / blocks; /* the largest first: small ones fill what is left */
        int channel = (int)(unit % blocks) * LANES;
        int64_t row = 0;
        for (long i = 0; i < which; i++) row += d->size[i];
        one_size(d, &s, which, row, channel, d->dim - channel);
    }
    free(s.memory);
    return NULL;
}

/* Forward where grad_out is NULL, else backward. Sizes are above 0 and ascend. Returns 0, or ENOMEM. */
int direct_convolution(const real *values, const real *filters, const real *grad_out, const int64_t *size,
                       const int64_t *first, const int64_t *start, long num_sizes, int dim, int num_filters,
                       int num_gates, int gate_first, int num_threads, real *out, real *grad_values,
                       real *grad_filters) {
    Direct d = {.values = values, .filters = filters, .grad_out = grad_out, .out = out, .grad_values = grad_values,
                .grad_filters = grad_filters, .size = size, .first = first, .start = start, .num_sizes = num_sizes,
                .largest = num_sizes ? size[num_sizes - 1] : 0, .dim = dim, .num_filters = num_filters,
                .num_gates = num_gates, .gate_first = gate_first};
    run_queue(&d.queue, work, &d, num_sizes * ((dim + LANES - 1) / LANES), num_threads);
    return atomic_load(&d.failed);
}
