/* Orders in which rows are visited: by descending norm, by place, by direction. */

/* Numbers of the keys by descending norm: three passes of a radix sort over the bits of the squared norms. */
static void sort_by_norm(const real *k, long count, int dim, int32_t *order, uint32_t *bits, int32_t *spare) {
    for (long key = 0; key < count; key++) {
        float square = 0;
        for (int i = 0; i < dim; i++) square += (float)k[key * dim + i] * (float)k[key * dim + i];
        memcpy(&bits[key], &square, 4); /* the bits of floats >= 0 are in their order */
        spare[key] = (int32_t)key;
    }
    for (int pass = 0; pass < 3; pass++) {
        long start[2048] = {0}, sum = 0;
        int shift = 11 * pass;
        for (long i = 0; i < count; i++) start[2047 - (bits[i] >> shift & 2047)]++;
        for (int i = 0; i < 2048; i++) { long here = start[i]; start[i] = sum; sum += here; }
        for (long i = 0; i < count; i++) order[start[2047 - (bits[spare[i]] >> shift & 2047)]++] = spare[i];
        memcpy(spare, order, count * sizeof(int32_t));
    }
}

typedef struct {
    const real *x;           /* (count, dim) */
    int32_t *order;          /* (count) numbers of the rows, split further level after level */
    Ranked *ranked;          /* (count) */
    const long *bounds;      /* (segments + 1), in rows */
    const long *halves;      /* (segments): where each is split; its start where it is not */
    int dim;
    Queue queue;
} Split;

static void *split_segments(void *argument) {
    Split *s = argument;
    long segment, end;
    int dim = s->dim;
    while ((segment = take(&s->queue, 1, &end)) < end) {
        long first = s->bounds[segment], count = s->bounds[segment + 1] - first, half = s->halves[segment] - first;
        if (half <= 0) continue;
        real low[dim], high[dim];
        for (int i = 0; i < dim; i++) low[i] = INFINITY, high[i] = -INFINITY;
        for (long row = 0; row < count; row++) {
            const real *x = s->x + (long)s->order[first + row] * dim;
            for (int i = 0; i < dim; i++) low[i] = MIN(low[i], x[i]), high[i] = MAX(high[i], x[i]);
        }
        int widest = 0;
        for (int i = 1; i < dim; i++)
            if (high[i] - low[i] > high[widest] - low[widest]) widest = i;
        Ranked *ranked = s->ranked + first;
        for (long row = 0; row < count; row++) {
            int32_t id = s->order[first + row];
            ranked[row] = (Ranked){s->x[(long)id * dim + widest], id};
        }
        select_rank(ranked, count, half);
        for (long row = 0; row < count; row++) s->order[first + row] = ranked[row].id;
    }
    return NULL;
}

/* Orders rows so that each `unit` of them lie together: segments of units are halved until they are one unit. */
static int spatial_order(const real *x, long count, int dim, long unit, int32_t *order, int num_threads) {
    long units = (count + unit - 1) / unit, segments = 1;
    long *memory = malloc(3 * (units + 2) * sizeof(long));
    Ranked *ranked = malloc((count + 1) * sizeof(Ranked));
    if (!memory || !ranked) {
        free(memory);
        free(ranked);
        return ENOMEM;
    }
    long *bounds = memory, *next = bounds + units + 2, *halves = next + units + 2;
    Split s = {.x = x, .order = order, .ranked = ranked, .halves = halves, .dim = dim};
    for (long row = 0; row < count; row++) order[row] = (int32_t)row;
    bounds[0] = 0;
    bounds[1] = count;
    while (segments < units) {
        long made = 0;
        for (long i = 0; i < segments; i++) {
            long first = bounds[i], own = (bounds[i + 1] - first + unit - 1) / unit;
            halves[i] = own > 1 ? first + (own + 1) / 2 * unit : first;
            next[made++] = first;
            if (own > 1) next[made++] = halves[i];
        }
        next[made] = count;
        s.bounds = bounds;
        atomic_store(&s.queue.next, 0);
        s.queue.items = segments;
        run_parallel(split_segments, &s, (int)MIN(num_threads, segments));
        long *spare = bounds;
        bounds = next;
        next = spare;
        segments = made;
    }
    free(memory);
    free(ranked);
    return 0;
}

/* Puts queries into the order of their directions, so that the queries of a tile want the same keys. */
static int order_by_direction(const real *q, long count, int dim, int32_t *order, int num_threads) {
    real *directions = malloc((count * dim + 1) * sizeof(real));
    if (!directions) return ENOMEM;
    for (long row = 0; row < count; row++) {
        real square = 0;
        for (int i = 0; i < dim; i++) square += q[row * dim + i] * q[row * dim + i];
        real scale = square > 0 && square < INFINITY ? 1 / (real)sqrt(square) : 0;
        for (int i = 0; i < dim; i++) directions[row * dim + i] = q[row * dim + i] * scale;
    }
    int failed = spatial_order(directions, count, dim, ROWS, order, num_threads);
    free(directions);
    return failed;
}
