/* Clamped attention along edges that are sorted by target, forward and backward, on a CPU (called by
 * ops/clamped_attention.py).
 *
 * A row of edge features belongs to one edge (a real edge with features of its own), or is shared by many (a kind of
 * edges). A query is multiplied by a shared row once, at the first edge of that kind into its target, and the gradients
 * of shared rows are added up by blocks of targets; those of other rows are written where they arise.
 *
 * A row of heads has C = H D channels. The forward walks the edges of each target; the backward walks them chunk by
 * chunk of targets, and each chunk twice: once by target, once by ranges of sources, so that no two threads add to one
 * row and every sum has the order of the edges. Results repeat bit for bit on any number of threads.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "simd.h"
#include "threads.h"

#define BLOCK 64         /* targets that a thread takes at a time, whose gradients of kinds are added up */
#define CHUNK (1 << 18)  /* edges of a chunk of the backward, more where one target has more */
#define AHEAD 4          /* edges from one that is computed to one that is fetched: sources are anywhere */
#define RANGES 16        /* most ranges of sources: each walks all edges */
#define CHAINS 8         /* partial sums of an inner product: one alone would wait for each addition */
#define AT_ONCE 64       /* products of a query with all shared rows that are not worth a branch at each edge */
#define OWN -1           /* number of a row of one edge, and of one of none */
#define UNUSED -2

typedef struct {
    const real *q, *k, *v, *e, *bias;    /* (M, C), (N, C), (N, C), (R, C), (R, H) or NULL */
    const int64_t *source, *row, *ptr;   /* (E), (E), (M + 1): the edges into target i are ptr[i] to ptr[i + 1] */
    const int32_t *kind, *shared;        /* (R): number among the shared rows, or less; (kinds): these rows */
    const uint8_t *keep;                 /* (E, H), or NULL */
    const real *grad_sum, *grad_total;   /* (M, C), (M, H) */
    real *out, *total, *weight;          /* (M, C), (M, H), (E, H) or NULL */
    real *grad_q, *grad_k, *grad_v, *grad_e, *grad_bias; /* those of shared rows are in partial */
    real *used, *grad_logit;             /* (edges of a chunk, H): weight after dropout, gradient of the logit */
    double *partial;                     /* (blocks of a chunk, kinds (C + H)): gradients of e and bias */
    int64_t first, last, edge;           /* targets of the chunk, its first edge */
    long num_targets, num_sources, ranges;
    int heads, dim, kinds, has_own;      /* H, D, shared rows (at most 32), whether there may be others */
    real limit, eps, scale, keep_scale;  /* keep_scale is 1 / (1 - dropout) */
    atomic_int failed;
    Queue queue;
} Clamped;

/* The inner product of two rows, for each head, or of three; D is a constant where a caller gives one. */
INLINE void dots(const real *a, const real *b, const real *e, int heads, int dim, real *result) {
    for (int h = 0; h < heads; h++, a += dim, b += dim, e += e ? dim : 0) {
        real sums[CHAINS] = {0}, sum = 0;
        int d = 0;
        for (; d + CHAINS <= dim; d += CHAINS)
            for (int i = 0; i < CHAINS; i++) sums[i] = MULTIPLY_ADD(e ? a[d + i] * e[d + i] : a[d + i], b[d + i], sums[i]);
        for (; d < dim; d++) sum = MULTIPLY_ADD(e ? a[d] * e[d] : a[d], b[d], sum);
        if (dim >= CHAINS) /* pairs, so that they are added side by side */
            sum += ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
        result[h] = sum;
    }
}

/* sum += factor_h values, for each head */
INLINE void add(real *restrict sum, const real *restrict factor, const real *restrict values, int heads, int dim) {
    for (int h = 0; h < heads; h++, sum += dim, values += dim)
        for (int d = 0; d < dim; d++) sum[d] = MULTIPLY_ADD(factor[h], values[d], sum[d]);
}

/* sum += factor_h values e, or = for a sum that is written once, for each head */
INLINE void add_product(real *restrict sum, const real *restrict factor, const real *restrict values,
                        const real *restrict e, int heads, int dim, int once) {
    for (int h = 0; h < heads; h++, sum += dim, values += dim, e += dim)
        for (int d = 0; d < dim; d++) sum[d] = MULTIPLY_ADD(factor[h] * values[d], e[d], once ? 0 : sum[d]);
}

/* What a pass holds of a target: its query times the scale, (C), and after it that times the shared rows, (kinds, C),
 * each made when its first edge comes, or all at once where that is less work. */
typedef struct {
    real *query;
    uint32_t made;
} Query;

INLINE Query query_of(const Clamped *c, long target, real *memory, int heads, int dim) {
    const real *q = c->q + target * heads * dim;
    int width = heads * dim;
    for (int i = 0; i < width; i++) memory[i] = q[i] * c->scale;
    if (c->kinds * width > AT_ONCE) return (Query){memory, 0};
    for (int r = 0; r < c->kinds; r++)
        for (int i = 0; i < width; i++) memory[(1 + r) * width + i] = memory[i] * c->e[c->shared[r] * width + i];
    return (Query){memory, ~(uint32_t)0};
}

INLINE const real *times_kind(const Clamped *c, Query *query, int kind, int heads, int dim) {
    long width = (long)heads * dim;
    real *restrict result = query->query + (1 + kind) * width;
    if (!(query->made >> kind & 1)) {
        const real *restrict e = c->e + c->shared[kind] * width;
        for (int i = 0; i < heads * dim; i++) result[i] = query->query[i] * e[i];
        query->made |= (uint32_t)1 << kind;
    }
    return result;
}

INLINE void fetch_row(const Clamped *c, const real *rows, int64_t row) {
    int width = c->heads * c->dim;
    const char *start = (const char *)(rows + row * width);
    for (size_t at = 0; at < width * sizeof(real); at += ALIGN) __builtin_prefetch(start + at);
}

INLINE void fetch(const Clamped *c, const real *rows, int64_t edge, int64_t end) {
    if (edge < end) fetch_row(c, rows, c->source[edge]);
}

INLINE void fetch_features(const Clamped *c, int64_t edge, int64_t end) {
    if (c->has_own && edge < end && c->kind[c->row[edge]] == OWN) fetch_row(c, c->e, c->row[edge]);
}

/* Logits of an edge, not yet clamped. */
INLINE void logits(const Clamped *c, Query *query, int64_t edge, int heads, int dim, real *logit) {
    long row = c->row[edge], width = (long)heads * dim;
    const real *key = c->k + c->source[edge] * width;
    int kind = c->kind[row];
    if (c->has_own && kind == OWN) dots(query->query, key, c->e + row * width, heads, dim, logit);
    else dots(times_kind(c, query, kind, heads, dim), key, NULL, heads, dim, logit);
    if (c->bias)
        for (int h = 0; h < heads; h++) logit[h] += c->bias[row * heads + h];
}

INLINE real score_of(real logit, real limit) {
    logit = logit > limit ? limit : logit < -limit ? -limit : logit;
    return EXP(logit);
}

INLINE void forward_target(const Clamped *c, long target, real *queries, real *score, int heads, int dim) {
    long width = (long)heads * dim;
    real *out = c->out + target * width, *total = c->total + target * heads, *use = score + heads;
    int64_t end = c->ptr[target + 1], all = c->ptr[c->num_targets];
    if (c->v) memset(out, 0, width * sizeof(real));
    for (int h = 0; h < heads; h++) total[h] = c->eps;
    Query query = query_of(c, target, queries, heads, dim);
    for (int64_t edge = c->ptr[target]; edge < end; edge++) {
        fetch(c, c->k, edge + AHEAD, all);
        fetch_features(c, edge + AHEAD, all);
        if (c->v) fetch(c, c->v, edge + AHEAD, all);
        logits(c, &query, edge, heads, dim, score);
        for (int h = 0; h < heads; h++) {
            score[h] = score_of(score[h], c->limit);
            total[h] += score[h];
            use[h] = !c->keep ? score[h] : c->keep[edge * heads + h] ? score[h] * c->keep_scale : 0;
        }
        if (c->weight) memcpy(c->weight + edge * heads, score, heads * sizeof(real));
        if (c->v) add(out, use, c->v + c->source[edge] * width, heads, dim);
    }
    for (int h = 0; h < heads; h++) total[h] = total[h] == 0 ? 1 : total[h];
    for (int64_t edge = c->ptr[target]; c->weight && edge < end; edge++)
        for (int h = 0; h < heads; h++) c->weight[edge * heads + h] /= total[h];
    for (int h = 0; c->v && h < heads; h++)
        for (int d = 0; d < dim; d++) out[h * dim + d] /= total[h];
}

/* dw = <g, v> - <g, o>, dz = dw s where the clamp does not hold, dq = sum dz e k; de = sum dz q k, db = sum dz */
INLINE void backward_target(const Clamped *c, long target, real *queries, double *partial, int heads, int dim) {
    long width = (long)heads * dim, kinds = c->kinds;
    real *sums = queries + (1 + kinds) * width, *score = sums + kinds * width, *product = score + heads;
    const real *grad = c->grad_sum + target * width;
    real *restrict grad_q = c->grad_q + target * width;
    int64_t all = c->ptr[c->num_targets];
    Query query = query_of(c, target, queries, heads, dim);
    memset(sums, 0, kinds * width * sizeof(real));
    memset(grad_q, 0, width * sizeof(real));
    for (int64_t edge = c->ptr[target]; edge < c->ptr[target + 1]; edge++) {
        real *used = c->used + (edge - c->edge) * heads, *grad_logit = c->grad_logit + (edge - c->edge) * heads;
        const real *key = c->k + c->source[edge] * width;
        long row = c->row[edge];
        int kind = c->kind[row];
        fetch(c, c->k, edge + AHEAD, all);
        fetch(c, c->v, edge + AHEAD, all);
        fetch_features(c, edge + AHEAD, all);
        logits(c, &query, edge, heads, dim, score);
        dots(grad, c->v + c->source[edge] * width, NULL, heads, dim, product);
        for (int h = 0; h < heads; h++) {
            real weight = score_of(score[h], c->limit);
            real factor = !c->keep ? 1 : c->keep[edge * heads + h] ? c->keep_scale : 0;
            int held = score[h] > c->limit || score[h] < -c->limit;
            used[h] = weight * factor;
            grad_logit[h] = held ? 0 : (product[h] * factor - c->grad_total[target * heads + h]) * weight;
        }
        if (c->has_own && kind == OWN) {
            add_product(grad_q, grad_logit, key, c->e + row * width, heads, dim, 0);
            add_product(c->grad_e + row * width, grad_logit, key, query.query, heads, dim, 1);
            if (c->bias) memcpy(c->grad_bias + row * heads, grad_logit, heads * sizeof(real));
        } else {
            add(sums + kind * width, grad_logit, key, heads, dim);
            for (int h = 0; h < heads; h++) partial[kinds * width + kind * heads + h] += grad_logit[h];
        }
    }
    for (long r = 0; r < kinds; r++) {
        if (!(query.made >> r & 1)) continue;
        const real *restrict factor = c->e + c->shared[r] * width, *restrict sum = sums + r * width;
        double *restrict of_kind = partial + r * width;
        for (long i = 0; i < width; i++) grad_q[i] += factor[i] * sum[i];
        for (long i = 0; i < width; i++) of_kind[i] += query.query[i] * sum[i];
    }
    for (long i = 0; i < width; i++) grad_q[i] *= c->scale;
}

static real *allocate(const Clamped *c, long count) {
    real *memory = malloc(count * sizeof(real));
    if (!memory) atomic_store((atomic_int *)&c->failed, 1);
    return memory;
}

/* dk = sum dz e q, dv = sum w g, over the edges of the chunk that come from one range of sources */
INLINE void backward_sources(const Clamped *c, long range, int heads, int dim) {
    long width = (long)heads * dim, step = (c->num_sources + c->ranges - 1) / c->ranges;
    int64_t begin = range * step, end = begin + step;
    real *queries = allocate(c, (1 + c->kinds) * width);
    if (!queries) return;
    int64_t last = c->ptr[c->last];
    for (long target = c->first; target < c->last; target++) {
        Query query = query_of(c, target, queries, heads, dim);
        for (int64_t edge = c->ptr[target]; edge < c->ptr[target + 1]; edge++) {
            int64_t source = c->source[edge], at = (edge - c->edge) * heads, row = c->row[edge];
            int kind = c->kind[row];
            fetch_features(c, edge + AHEAD, last);
            fetch(c, c->grad_k, edge + AHEAD, last);
            fetch(c, c->grad_v, edge + AHEAD, last);
            if (source < begin || source >= end) continue;
            real *grad_k = c->grad_k + source * width;
            if (c->has_own && kind == OWN)
                add_product(grad_k, c->grad_logit + at, query.query, c->e + row * width, heads, dim, 0);
            else add(grad_k, c->grad_logit + at, times_kind(c, &query, kind, heads, dim), heads, dim);
            add(c->grad_v + source * width, c->used + at, c->grad_sum + target * width, heads, dim);
        }
    }
    free(queries);
}

/* The bodies for widths that are often used, whose loops over channels the compiler unrolls, and for any other. */
#define OF_WIDTH(body, ...)                                        \
    if (c->dim == 4) body(__VA_ARGS__, c->heads, 4);               \
    else if (c->dim == 8) body(__VA_ARGS__, c->heads, 8);          \
    else if (c->dim == 12) body(__VA_ARGS__, c->heads, 12);        \
    else if (c->dim == 16) body(__VA_ARGS__, c->heads, 16);        \
    else if (c->dim == 32) body(__VA_ARGS__, c->heads, 32);        \
    else body(__VA_ARGS__, c->heads, c->dim)

static void *forward_targets(void *argument) {
    Clamped *c = argument;
    long width = (long)c->heads * c->dim, end;
    real *queries = allocate(c, (1 + c->kinds) * width + 2 * c->heads);
    if (!queries) return NULL;
    for (long target; (target = take(&c->queue, BLOCK, &end)) < end;)
        for (; target < end; target++) {
            OF_WIDTH(forward_target, c, target, queries, queries + (1 + c->kinds) * width);
        }
    free(queries);
    return NULL;
}

static void *backward_targets(void *argument) {
    Clamped *c = argument;
    long width = (long)c->heads * c->dim, end;
    real *queries = allocate(c, (1 + 2 * c->kinds) * width + 2 * c->heads);
    if (!queries) return NULL;
    for (long at; (at = take(&c->queue, BLOCK, &end)) < end;) {
        double *partial = c->partial + at / BLOCK * c->kinds * (width + c->heads);
        memset(partial, 0, c->kinds * (width + c->heads) * sizeof(double));
        for (; at < end; at++) { OF_WIDTH(backward_target, c, c->first + at, queries, partial); }
    }
    free(queries);
    return NULL;
}

static void *backward_ranges(void *argument) {
    Clamped *c = argument;
    long end;
    for (long range; (range = take(&c->queue, 1, &end)) < end;) { OF_WIDTH(backward_sources, c, range); }
    return NULL;
}

/* Numbers the rows that several edges share: all of them where they are few. Returns 1 if there are too many. */
static int number_rows(const int64_t *row, long num_edges, long num_rows, int most_shared, int32_t *kind,
                       int32_t *shared, int *num_shared) {
    int all = num_rows <= most_shared;
    *num_shared = 0;
    memset(kind, 0, num_rows * sizeof(int32_t)); /* counts first: 0, 1, or 2 for more */
    for (long e = 0; !all && e < num_edges; e++)
        if (kind[row[e]] < 2) kind[row[e]]++;
    for (long r = 0; r < num_rows; r++) {
        int several = all || kind[r] == 2;
        if (several && *num_shared == most_shared) return 1;
        if (several) shared[*num_shared] = (int32_t)r;
        kind[r] = several ? (*num_shared)++ : kind[r] ? OWN : UNUSED;
    }
    return 0;
}

/* Fills ptr (num_targets + 1), kind (num_rows) and shared (most_shared at most), and counts the latter. Returns 0, 1 if
 * the edges are not sorted by target or share more rows, or EINVAL if one of their three rows names something that is
 * not there. */
int edges_by_target(const int64_t *edges, long num_edges, long num_targets, long num_sources, long num_rows,
                    int most_shared, int64_t *ptr, int32_t *kind, int32_t *shared, int *num_shared) {
    const int64_t *source = edges, *target = edges + num_edges, *row = target + num_edges;
    long outside = 0, unsorted = 0;
    for (long e = 0; e < num_edges; e++)
        outside |= (uint64_t)source[e] >= (uint64_t)num_sources || (uint64_t)target[e] >= (uint64_t)num_targets ||
                   (uint64_t)row[e] >= (uint64_t)num_rows;
    if (outside) return EINVAL;
    for (long e = 1; e < num_edges; e++) unsorted |= target[e] < target[e - 1];
    if (unsorted) return 1;
    if (number_rows(row, num_edges, num_rows, most_shared, kind, shared, num_shared)) return 1;
    for (long i = 0, e = 0; i <= num_targets; i++) {
        while (e < num_edges && target[e] < i) e++;
        ptr[i] = e;
    }
    return 0;
}

/* The targets after the chunk that begins with `first`. */
static long chunk_end(const int64_t *ptr, long num_targets, long first) {
    long last = first + 1;
    while (last < num_targets && ptr[last + 1] - ptr[first] <= CHUNK) last++;
    return last;
}

static int backward(Clamped *c, long num_rows, int num_threads) {
    const int64_t *ptr = c->ptr;
    long width = (long)c->heads * c->dim, of_kinds = c->kinds * (width + c->heads), most_edges = 1, most_targets = 1;
    for (long first = 0, last; first < c->num_targets; first = last) {
        last = chunk_end(ptr, c->num_targets, first);
        most_edges = ptr[last] - ptr[first] > most_edges ? ptr[last] - ptr[first] : most_edges;
        most_targets = last - first > most_targets ? last - first : most_targets;
    }
    c->used = malloc(2 * most_edges * c->heads * sizeof(real));
    c->grad_logit = c->used + most_edges * c->heads;
    c->partial = malloc((most_targets + BLOCK - 1) / BLOCK * (of_kinds + 1) * sizeof(double));
    double *sums = calloc(of_kinds + 1, sizeof(double));
    int failed = !c->used || !c->partial || !sums;
    memset(c->grad_k, 0, c->num_sources * width * sizeof(real));
    memset(c->grad_v, 0, c->num_sources * width * sizeof(real));
    for (long r = 0; r < num_rows; r++)
        if (c->kind[r] == UNUSED) {
            memset(c->grad_e + r * width, 0, width * sizeof(real));
            if (c->bias) memset(c->grad_bias + r * c->heads, 0, c->heads * sizeof(real));
        }
    for (c->first = 0; !failed && c->first < c->num_targets; c->first = c->last) {
        c->last = chunk_end(ptr, c->num_targets, c->first);
        c->edge = ptr[c->first];
        run_queue(&c->queue, backward_targets, c, c->last - c->first, num_threads);
        for (long block = 0; block * BLOCK < c->last - c->first; block++)
            for (long i = 0; i < of_kinds; i++) sums[i] += c->partial[block * of_kinds + i];
        run_queue(&c->queue, backward_ranges, c, c->ranges, num_threads);
        failed = atomic_load(&c->failed);
    }
    for (long r = 0; !failed && r < c->kinds; r++) {
        for (long i = 0; i < width; i++) c->grad_e[c->shared[r] * width + i] = (real)sums[r * width + i];
        for (int h = 0; c->bias && h < c->heads; h++)
            c->grad_bias[(long)c->shared[r] * c->heads + h] = (real)sums[c->kinds * width + r * c->heads + h];
    }
    free(sums);
    free(c->used);
    free(c->partial);
    return failed;
}

/* Forward where grad_sum is NULL: output and sums, where v is not NULL, and normalised weights of the edges, where weight
 * is not; else backward. Returns 0, or ENOMEM. */
int clamped_attention(const real *q, const real *k, const real *v, const real *e, const real *bias, const int64_t *edges,
                      const int64_t *ptr, const int32_t *kind, const int32_t *shared, const uint8_t *keep,
                      long num_edges, long num_targets, long num_sources, long num_rows, int heads, int dim, int kinds,
                      double limit, double eps, double scale, double dropout, int num_threads, real *out, real *total,
                      real *weight, const real *grad_sum, const real *grad_total, real *grad_q, real *grad_k,
                      real *grad_v, real *grad_e, real *grad_bias) {
    Clamped c = {.q = q, .k = k, .v = v, .e = e, .bias = bias, .source = edges, .row = edges + 2 * num_edges,
                 .kind = kind, .shared = shared, .has_own = num_rows > kinds, .ptr = ptr, .keep = keep,
                 .num_targets = num_targets, .num_sources = num_sources, .heads = heads, .dim = dim, .kinds = kinds,
                 .limit = (real)limit, .eps = (real)eps, .scale = (real)scale,
                 .keep_scale = (real)(1 / (1 - dropout)), .out = out, .total = total, .weight = weight,
                 .grad_sum = grad_sum, .grad_total = grad_total, .grad_q = grad_q, .grad_k = grad_k, .grad_v = grad_v,
                 .grad_e = grad_e, .grad_bias = grad_bias, .ranges = num_threads < RANGES ? num_threads : RANGES};
    if (grad_sum) return backward(&c, num_rows, num_threads) ? ENOMEM : 0;
    run_queue(&c.queue, forward_targets, &c, num_targets, num_threads);
    return atomic_load(&c.failed) ? ENOMEM : 0;
}
