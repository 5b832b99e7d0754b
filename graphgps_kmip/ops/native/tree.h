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

/* Orders rows so that each `unit` of them are close together: segments of units are halved until they are one unit. */
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
            long first = bounds[i], num_units = (bounds[i + 1] - first + unit - 1) / unit;
            halves[i] = num_units > 1 ? first + (num_units + 1) / 2 * unit : first;
            next[made++] = first;
            if (num_units > 1) next[made++] = halves[i];
        }
        next[made] = count;
        s.bounds = bounds;
        run_queue(&s.queue, split_segments, &s, segments, (int)MIN(num_threads, segments));
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

/* A k-d tree over panels of keys, and a search that opens only boxes which may hold one of the K best.
 *
 * Median splits of the widest side end at panels of PANEL keys; a query's score in a box is at most
 * sum_i q_i center_i + |q_i| extent_i. Queries are split in the same way by direction, so that the ROWS queries of a
 * tile want the same boxes: they go down the tree together.
 */

typedef struct {
    real *center, *extent;   /* (nodes, dim) */
    int32_t *left;           /* (nodes): first child, the second follows; -1 - panel for a leaf */
    long nodes;
    float radius;            /* largest norm of a key */
} Tree;

static size_t tree_size(long panels, int dim) {
    return 2 * aligned(2 * panels * dim * sizeof(real)) + aligned(2 * panels * sizeof(int32_t)) + ALIGN;
}

/* The box of a node over `count` panels from `first`, after those of its children. */
static void build_node(Tree *tree, const Keys *keys, long node, long first, long count) {
    int dim = keys->dim;
    real *center = tree->center + node * dim, *extent = tree->extent + node * dim;
    if (count == 1) {
        int filled = filled_lanes(keys, first);
        tree->left[node] = (int32_t)(-1 - first);
        for (int i = 0; i < dim; i++) {
            const real *x = keys->columns + (first * dim + i) * PANEL;
            real low = x[0], high = x[0];
            for (int lane = 1; lane < filled; lane++) low = MIN(low, x[lane]), high = MAX(high, x[lane]);
            center[i] = low / 2 + high / 2;
            /* the sides are a rounding outside of the keys */
            extent[i] = (MAX(high - center[i], center[i] - low)) * (1 + 4 * (real)EPSILON);
        }
        return;
    }
    long left = tree->nodes;
    tree->nodes += 2;
    tree->left[node] = (int32_t)left;
    build_node(tree, keys, left, first, (count + 1) / 2);
    build_node(tree, keys, left + 1, first + (count + 1) / 2, count / 2);
    for (int i = 0; i < dim; i++) {
        const real *c = tree->center + left * dim + i, *e = tree->extent + left * dim + i;
        real low = MIN(c[0] - e[0], c[dim] - e[dim]), high = MAX(c[0] + e[0], c[dim] + e[dim]);
        center[i] = low / 2 + high / 2;
        extent[i] = MAX(high - center[i], center[i] - low) * (1 + 4 * (real)EPSILON);
    }
}

static void build_tree(Tree *tree, const Keys *keys, char *memory) {
    long most = 2 * keys->panels;
    tree->center = carve(&memory, most * keys->dim * sizeof(real));
    tree->extent = carve(&memory, most * keys->dim * sizeof(real));
    tree->left = carve(&memory, most * sizeof(int32_t));
    tree->nodes = 1;
    tree->radius = 0;
    for (long panel = 0; panel < keys->panels; panel++) tree->radius = MAX(tree->radius, keys->norm[panel]);
    build_node(tree, keys, 0, 0, keys->panels);
}

#define SEEDS 4 /* panels that start the thresholds of a tile */
#define DEEPEST 64 /* halves of 2^31 panels are 31 deep, and each level leaves one visit on the stack */

typedef struct { rows bound; int32_t node; } Visit;

/* Upper bounds of each row's scores in a box; returns their sum over the queries. */
static inline real bound_scores(const Tile *tile, const Tree *tree, int dim, Visit *visit) {
    const real *center = tree->center + (long)visit->node * dim, *extent = tree->extent + (long)visit->node * dim;
    rows sum = tile->slack;
    for (int i = 0; i < dim; i++) {
        rows q = load_rows(tile->columns + i * ROWS);
        sum += q * center[i] + absolute(q) * extent[i];
    }
    visit->bound = sum;
    real total = 0;
    for (int j = 0; j < ROWS; j++) total += sum[j]; /* rows that are no query add 0 */
    return total;
}

/* Starts the thresholds from the panels around the best one that a greedy descent finds. */
static void seed_from_tree(Tile *tile, const Keys *keys, const Tree *tree, int num_keys) {
    Visit visit = {.node = 0}, other;
    while (tree->left[visit.node] >= 0) {
        visit.node = tree->left[visit.node];
        other.node = visit.node + 1;
        if (bound_scores(tile, tree, keys->dim, &other) > bound_scores(tile, tree, keys->dim, &visit)) visit.node++;
    }
    long first = (-1 - tree->left[visit.node]) / SEEDS * SEEDS;
    seed(tile, keys, first, MIN(keys->panels, first + SEEDS), num_keys);
}

/* Raises the thresholds to what the keys found by a row of a neighbour reach: K keys, so K scores are as large. */
static void seed_from_neighbour(Tile *tile, const Tile *neighbour, int row, const Keys *keys, const real *k,
                                int num_keys) {
    const int32_t *id = neighbour->id + row * neighbour->stride;
    rows worst = {0};
    if (id[num_keys - 1] < 0) return;
    for (int i = 0; i < num_keys; i++) {
        rows sum = {0};
        for (int c = 0; c < keys->dim; c++) sum += load_rows(tile->columns + c * ROWS) * k[(long)id[i] * keys->dim + c];
        for (int j = 0; j < ROWS; j++) worst[j] = i && worst[j] < sum[j] ? worst[j] : sum[j];
    }
    worst -= tile->slack + (real)1e-37;
    for (int j = 0; j < tile->count; j++) {
        if (worst[j] > tile->threshold[j]) tile->threshold[j] = worst[j];
        tile->low[j] = (float)tile->threshold[j];
    }
}

/* `neighbour` is a tile that has been searched, or NULL; k holds the keys as they were given. Long lists are put in
 * order at the very end, so that a neighbour's cannot help. */
static void search_tree(Tile *tile, const Tile *neighbour, const Keys *keys, const Tree *tree, const real *k,
                        int num_keys) {
    Visit stack[DEEPEST];
    int depth = 1, dim = keys->dim;
    /* the rounding of a bound and of a score; a corner is sqrt(dim) radii away at most */
    tile->slack = tile->reach * (real)((dim + 4) * (4 + 2 * sqrt(dim)) * EPSILON * tree->radius);
    if (neighbour && num_keys <= SHORT_LIST) {
        seed_from_neighbour(tile, neighbour, 0, keys, k, num_keys);
        seed_from_neighbour(tile, neighbour, neighbour->count - 1, keys, k, num_keys);
    } else {
        seed_from_tree(tile, keys, tree, num_keys);
    }
    stack[0].node = 0;
    bound_scores(tile, tree, dim, &stack[0]);
    while (depth > 0) {
        Visit visit = stack[--depth];
        if (!any_above(visit.bound, tile->threshold)) continue;
        int32_t left = tree->left[visit.node];
        if (left < 0) {
            scan(tile, keys, -1 - left, num_keys);
            continue;
        }
        Visit *lower = &stack[depth], *upper = &stack[depth + 1]; /* the better one is visited first */
        lower->node = left;
        upper->node = left + 1;
        if (bound_scores(tile, tree, dim, lower) > bound_scores(tile, tree, dim, upper)) {
            Visit spare = *lower;
            *lower = *upper;
            *upper = spare;
        }
        depth += 2;
    }
    settle(tile, keys, num_keys);
}
