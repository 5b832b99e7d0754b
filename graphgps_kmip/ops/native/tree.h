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
            /* the sides lie a rounding outside of the keys */
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
    Visit one = {.node = 0}, other;
    while (tree->left[one.node] >= 0) {
        one.node = tree->left[one.node];
        other.node = one.node + 1;
        if (bound_scores(tile, tree, keys->dim, &other) > bound_scores(tile, tree, keys->dim, &one)) one.node++;
    }
    long first = (-1 - tree->left[one.node]) / SEEDS * SEEDS;
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
