/* Batch norm of rows with ReLU and a residual, forward and backward, on a CPU (called by mpnn/norm_update.py).
 *
 * y = r + relu(x s + t), with s = w / sqrt(variance + eps) and t = b - mean s. Each pass reads its rows once, in blocks
 * that stay in the cache; sums are taken in double precision in the order of the blocks, so results repeat bit for bit
 * on any number of threads.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "simd.h"
#include "threads.h"

#define BLOCK_ROWS 64

typedef struct {
    const real *x, *grad, *residual;  /* (P, C); residual may be NULL */
    const real *scale, *shift, *mean; /* (C): s, t */
    const real *slope, *offset;       /* (C): of the backward, what the statistics add to the gradient */
    real *out;                        /* (P, C) */
    double *sums;                     /* (blocks, 2 C) */
    long rows;
    int dim, relu;
    atomic_int failed;
    Queue queue;
} Norm;

#define EACH_BLOCK(first, count)                                                                  \
    for (long block, end; (block = take(&n->queue, 1, &end)) < end;)                              \
        for (long first = block * BLOCK_ROWS, once = 1,                                           \
                  count = n->rows - first < BLOCK_ROWS ? n->rows - first : BLOCK_ROWS; once; once = 0)

/* Sums of each block, and of its squared distances from its own mean. */
static void *sum_blocks(void *argument) {
    Norm *n = argument;
    int dim = n->dim;
    real *restrict sum = malloc(2 * dim * sizeof(real)), *restrict square = sum + dim;
    if (!sum) {
        atomic_store(&n->failed, 1);
        return NULL;
    }
    EACH_BLOCK(first, count) {
        const real *restrict x = n->x + first * dim;
        memset(sum, 0, 2 * dim * sizeof(real));
        for (long r = 0; r < count; r++)
            for (int c = 0; c < dim; c++) sum[c] += x[r * dim + c];
        double *restrict result = n->sums + 2 * block * dim;
        for (int c = 0; c < dim; c++) {
            result[c] = sum[c];
            sum[c] /= count;
        }
        for (long r = 0; r < count; r++)
            for (int c = 0; c < dim; c++) {
                real away = x[r * dim + c] - sum[c];
                square[c] = MULTIPLY_ADD(away, away, square[c]);
            }
        for (int c = 0; c < dim; c++) result[dim + c] = square[c];
    }
    free(sum);
    return NULL;
}

/* y = r + relu(x s + t); a NaN stays one. `relu` and `residual` are constants where they are given. */
INLINE void apply_rows(const Norm *n, long first, long count, int relu, int residual) {
    int dim = n->dim;
    const real *restrict scale = n->scale, *restrict shift = n->shift;
    for (long r = first; r < first + count; r++) {
        const real *restrict x = n->x + r * dim, *restrict more = residual ? n->residual + r * dim : NULL;
        real *restrict out = n->out + r * dim;
        for (int c = 0; c < dim; c++) {
            real y = MULTIPLY_ADD(x[c], scale[c], shift[c]);
            y = relu && y <= 0 ? 0 : y;
            out[c] = residual ? more[c] + y : y;
        }
    }
}

static void *apply_blocks(void *argument) {
    Norm *n = argument;
    EACH_BLOCK(first, count) {
        if (n->relu && n->residual) apply_rows(n, first, count, 1, 1);
        else if (n->relu) apply_rows(n, first, count, 1, 0);
        else if (n->residual) apply_rows(n, first, count, 0, 1);
        else apply_rows(n, first, count, 0, 0);
    }
    return NULL;
}

/* Sums of d and of d (x - mean) in each block, d the gradient of x s + t: 0 where the ReLU is. */
INLINE void reduce_rows(const Norm *n, long first, long count, real *restrict sum, int relu) {
    int dim = n->dim;
    real *restrict product = sum + dim;
    const real *restrict mean = n->mean, *restrict scale = n->scale, *restrict shift = n->shift;
    for (long r = first; r < first + count; r++) {
        const real *restrict x = n->x + r * dim, *restrict grad = n->grad + r * dim;
        for (int c = 0; c < dim; c++) {
            real d = relu && MULTIPLY_ADD(x[c], scale[c], shift[c]) <= 0 ? 0 : grad[c];
            sum[c] += d;
            product[c] = MULTIPLY_ADD(d, x[c] - mean[c], product[c]);
        }
    }
}

static void *reduce_blocks(void *argument) {
    Norm *n = argument;
    int dim = n->dim;
    real *sum = malloc(2 * dim * sizeof(real));
    if (!sum) {
        atomic_store(&n->failed, 1);
        return NULL;
    }
    EACH_BLOCK(first, count) {
        memset(sum, 0, 2 * dim * sizeof(real));
        if (n->relu) reduce_rows(n, first, count, sum, 1);
        else reduce_rows(n, first, count, sum, 0);
        double *restrict result = n->sums + 2 * block * dim;
        for (int c = 0; c < 2 * dim; c++) result[c] = sum[c];
    }
    free(sum);
    return NULL;
}

/* dx = s d + slope x + offset */
INLINE void backward_rows(const Norm *n, long first, long count, int relu) {
    int dim = n->dim;
    const real *restrict scale = n->scale, *restrict shift = n->shift;
    const real *restrict slope = n->slope, *restrict offset = n->offset;
    for (long r = first; r < first + count; r++) {
        const real *restrict x = n->x + r * dim, *restrict grad = n->grad + r * dim;
        real *restrict out = n->out + r * dim;
        for (int c = 0; c < dim; c++) {
            real d = relu && MULTIPLY_ADD(x[c], scale[c], shift[c]) <= 0 ? 0 : grad[c];
            out[c] = MULTIPLY_ADD(scale[c], d, MULTIPLY_ADD(slope[c], x[c], offset[c]));
        }
    }
}

static void *backward_blocks(void *argument) {
    Norm *n = argument;
    EACH_BLOCK(first, count) {
        if (n->relu) backward_rows(n, first, count, 1);
        else backward_rows(n, first, count, 0);
    }
    return NULL;
}

static void run(Norm *n, void *(*work)(void *), int num_threads) {
    atomic_store(&n->queue.next, 0);
    n->queue.items = (n->rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    run_parallel(work, n, num_threads);
}

/* Runs a pass that gives two sums of each block. Returns 0, or ENOMEM. */
static int run_sums(Norm *n, void *(*work)(void *), int num_threads) {
    n->sums = malloc((n->rows / BLOCK_ROWS + 1) * 2 * n->dim * sizeof(double));
    if (!n->sums) return ENOMEM;
    run(n, work, num_threads);
    return atomic_load(&n->failed) ? ENOMEM : 0;
}

/* Mean and biased variance of each channel, of at least one row. Returns 0, or ENOMEM. */
static int statistics(Norm *n, int num_threads, double *mean, double *variance) {
    int failed = run_sums(n, sum_blocks, num_threads), dim = n->dim;
    memset(mean, 0, dim * sizeof(double));
    memset(variance, 0, dim * sizeof(double));
    for (long first = 0; !failed && first < n->rows; first += BLOCK_ROWS) { /* joined as by Chan et al. 1979 */
        const double *sum = n->sums + first / BLOCK_ROWS * 2 * dim, *square = sum + dim;
        double before = (double)first, count = n->rows - first < BLOCK_ROWS ? n->rows - first : BLOCK_ROWS;
        for (int c = 0; c < dim; c++) {
            double away = sum[c] / count - mean[c];
            mean[c] += away * count / (before + count);
            variance[c] += square[c] + away * away * before * count / (before + count);
        }
    }
    for (int c = 0; c < dim; c++) variance[c] /= n->rows;
    free(n->sums);
    return failed;
}

/* moments (2, C): mean and biased variance, those of the rows, which are written, or given ones; affine (2, C): s and
 * t, which are written. Returns 0, or ENOMEM. */
int norm_forward(const real *x, const real *weight, const real *bias, const real *residual, int relu, int of_rows,
                 double eps, long rows, int dim, int num_threads, double *moments, real *affine, real *out) {
    Norm n = {.x = x, .scale = affine, .shift = affine + dim, .residual = residual, .relu = relu, .rows = rows,
              .dim = dim, .out = out};
    if (of_rows && statistics(&n, num_threads, moments, moments + dim)) return ENOMEM;
    for (int c = 0; c < dim; c++) {
        double scale = weight[c] / sqrt(moments[dim + c] + eps);
        affine[c] = (real)scale;
        affine[dim + c] = (real)(bias[c] - moments[c] * scale);
    }
    run(&n, apply_blocks, num_threads);
    return 0;
}

/* Gradients (2, C) of weight and bias, and slopes (2, C): what the statistics add to the gradient of x is the first row
 * times x plus the second one; zeros for given statistics. With z the normalised x, dx = s (d - mean(d) - z mean(d z)).
 * Returns 0, or ENOMEM. */
int norm_gradients(const real *grad, const real *x, const real *weight, const real *affine, const double *moments,
                   int relu, int of_rows, double eps, long rows, int dim, int num_threads, real *slopes,
                   real *gradients) {
    real *mean = malloc(dim * sizeof(real));
    double *sums = calloc(2 * dim, sizeof(double));
    Norm n = {.grad = grad, .x = x, .scale = affine, .shift = affine + dim, .mean = mean, .relu = relu, .rows = rows,
              .dim = dim};
    int failed = !mean || !sums;
    for (int c = 0; !failed && c < dim; c++) mean[c] = (real)moments[c];
    failed = failed || run_sums(&n, reduce_blocks, num_threads);
    for (long block = 0; !failed && block * BLOCK_ROWS < rows; block++)
        for (int c = 0; c < 2 * dim; c++) sums[c] += n.sums[2 * block * dim + c];
    for (int c = 0; !failed && c < dim; c++) {
        double inverse = 1 / sqrt(moments[dim + c] + eps);
        double slope = of_rows ? -weight[c] * inverse * inverse * inverse * sums[dim + c] / rows : 0;
        slopes[c] = (real)slope;
        slopes[dim + c] = (real)(of_rows ? -weight[c] * inverse * sums[c] / rows - slope * moments[c] : 0);
        gradients[c] = (real)(sums[dim + c] * inverse);
        gradients[dim + c] = (real)sums[c];
    }
    free(mean);
    free(sums);
    free(n.sums);
    return failed ? ENOMEM : 0;
}

/* The gradient of x, with the slopes of norm_gradients. */
int norm_backward(const real *grad, const real *x, const real *affine, const real *slopes, int relu, long rows, int dim,
                  int num_threads, real *out) {
    Norm n = {.grad = grad, .x = x, .scale = affine, .shift = affine + dim, .slope = slopes, .offset = slopes + dim,
              .relu = relu, .rows = rows, .dim = dim, .out = out};
    run(&n, backward_blocks, num_threads);
    return 0;
}
