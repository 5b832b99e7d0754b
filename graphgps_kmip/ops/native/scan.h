/* A tile against panels of keys in full precision: every pair of a panel is scored in registers and compared with the
 * row's threshold. */

/* The score of one pair: a column of a tile times the row of a key, summed in the order of multiply(). */
static inline real product(const real *q, const real *k, int dim) {
    real sum = 0;
    for (int i = 0; i < dim; i++) sum = MULTIPLY_ADD(q[i * ROWS], k[i], sum);
    return sum;
}

static inline uint64_t lowest_bits(int count) { return count < 64 ? ((uint64_t)1 << count) - 1 : ~(uint64_t)0; }

/* sum[j][v] = products of REGISTER_ROWS queries and 3 * LANES keys. Every index into `sum` must be a constant, or the
 * compiler keeps it in memory: hence the unrolled loops. */
INLINE void multiply(vec sum[REGISTER_ROWS][3], const real *q, const real *k, int dim) {
    if (dim < 1) __builtin_unreachable(); /* or the sums are copied where the loop might not run */
    UNROLL for (int j = 0; j < REGISTER_ROWS; j++) sum[j][0] = sum[j][1] = sum[j][2] = set1(0);
    for (int i = 0; i < dim; i++, k += PANEL, q += ROWS) {
        vec k0 = load(k), k1 = load(k + LANES), k2 = load(k + 2 * LANES);
        UNROLL for (int j = 0; j < REGISTER_ROWS; j++) {
            factors some = load_factors(q + j / FACTORS * FACTORS);
            sum[j][0] = add_multiple(sum[j][0], some, j % FACTORS, k0);
            sum[j][1] = add_multiple(sum[j][1], some, j % FACTORS, k1);
            sum[j][2] = add_multiple(sum[j][2], some, j % FACTORS, k2);
        }
    }
}

/* Whether a score of a block exceeds the threshold of its row. */
INLINE int any_score_above(vec sum[REGISTER_ROWS][3], const real *threshold) {
    comparison any;
    vec largest[REGISTER_ROWS];
    UNROLL for (int j = 0; j < REGISTER_ROWS; j++) largest[j] = max_(max_(sum[j][0], sum[j][1]), sum[j][2]);
#ifdef NEON /* LANES rows are compared at once */
    UNROLL for (int j = 0; j < REGISTER_ROWS; j += LANES) {
        comparison some = above(max_of_each(largest + j), load(threshold + j));
        any = j ? either(any, some) : some;
    }
#else
    UNROLL for (int j = 0; j < REGISTER_ROWS; j++) {
        comparison row_above = above(largest[j], set1(threshold[j]));
        any = j ? either(any, row_above) : row_above;
    }
#endif
    return bits(any) != 0;
}

/* Offers the keys of a block whose scores beat the thresholds; apart, so that it takes no registers from the scan. */
static __attribute__((noinline)) void offer_block(Tile *tile, const int32_t *id, int first_row, int filled,
                                                  real score[REGISTER_ROWS][3 * LANES], int num_keys) {
    for (int j = 0; j < REGISTER_ROWS; j++) {
        vec threshold = set1(tile->threshold[first_row + j]);
        uint64_t left = 0;
        for (int v = 0; v < 3; v++) left |= (uint64_t)bits(above(load(score[j] + v * LANES), threshold)) << (v * LANES);
        for (left &= lowest_bits(filled); left; left &= left - 1) {
            int lane = __builtin_ctzll(left);
            offer(tile, first_row + j, score[j][lane], id[lane], num_keys);
        }
    }
}

static void scan_columns(Tile *tile, const Keys *keys, long panel, int num_keys) {
    int filled = filled_lanes(keys, panel);
    const real *columns = keys->columns + panel * PANEL * keys->dim;
    for (int c = 0; c < filled; c += 3 * LANES)
        for (int r = 0; r < ROWS; r += REGISTER_ROWS) {
            vec sum[REGISTER_ROWS][3];
            multiply(sum, tile->columns + r, columns + c, keys->dim);
            if (!any_score_above(sum, (const real *)&tile->threshold + r)) continue;
            real score[REGISTER_ROWS][3 * LANES];
            UNROLL for (int j = 0; j < REGISTER_ROWS; j++)
                UNROLL for (int v = 0; v < 3; v++) store(score[j] + v * LANES, sum[j][v]);
            offer_block(tile, keys->id + panel * PANEL + c, r, filled - c, score, num_keys);
        }
}

/* Raises the thresholds to just under what K of the first panels' keys are sure to reach, so that few enter in vain.
 *
 * The keys of one lane of every `sets`-th panel are a group; a value that K group maxima exceed, K keys exceed. */
static void seed(Tile *tile, const Keys *keys, long first, long end, int num_keys) {
    int sets = (num_keys + PANEL / 2 - 1) / (PANEL / 2), lanes = PANEL; /* twice as many groups as keys are wanted */
    if (keys->panels == 1) sets = 1, lanes = filled_lanes(keys, 0); /* or all, one key each */
    else if (filled_lanes(keys, end - 1) < PANEL) end--;
    if (sets > MOST_SETS || end - first < sets || (keys->panels == 1 && lanes < num_keys)) return;
    real best[ROWS][MOST_SETS * PANEL], largest = 0;
    for (long panel = first; panel < end; panel++) {
        const real *columns = keys->columns + panel * PANEL * keys->dim;
        for (int c = 0; c < PANEL; c += 3 * LANES)
            for (int r = 0; r < ROWS; r += REGISTER_ROWS) {
                vec sum[REGISTER_ROWS][3];
                multiply(sum, tile->columns + r, columns + c, keys->dim);
                UNROLL for (int j = 0; j < REGISTER_ROWS; j++)
                    UNROLL for (int v = 0; v < 3; v++) {
                        real *place = best[r + j] + (panel - first) % sets * PANEL + c + v * LANES;
                        store(place, panel - first >= sets ? max_(load(place), sum[j][v]) : sum[j][v]);
                    }
            }
        tile->scored++;
        largest = MAX(largest, keys->norm[panel]);
    }
    rows groups[MOST_SETS * PANEL], low, high; /* one of each row side by side: all rows are halved at once */
    int count = (sets - 1) * PANEL + lanes;
    for (int group = 0; group < count; group++) {
        for (int row = 0; row < ROWS; row++) groups[group][row] = best[row][group];
        low = group ? choose(groups[group] < low, groups[group], low) : groups[group];
        high = group ? choose(groups[group] > high, groups[group], high) : groups[group];
    }
    rows finite = high - low;
    for (int halving = 0; halving < 12; halving++) {
        rows middle = low + (high - low) / 2;
        row_bits above_it = {0};
        for (int group = 0; group < count; group++) above_it -= groups[group] > middle;
        row_bits enough = above_it >= num_keys;
        low = choose(enough, middle, low);
        high = choose(enough, high, middle);
    }
    for (int row = 0; row < tile->count; row++) {
        /* for settle(), which may round otherwise than multiply(), and for maxima that are all equal or zero */
        real margin = 4 * keys->dim * (real)EPSILON * tile->norm[row] * largest + (real)1e-37;
        if (finite[row] < INFINITY) tile->threshold[row] = MAX(tile->threshold[row], low[row] - margin);
        tile->low[row] = (float)tile->threshold[row];
    }
}

/* Whether no key of the panel can beat a threshold: <q, k> <= |q| |k|. */
static inline int hopeless(const Tile *tile, float norm) { return !any_above(tile->reach * norm, tile->threshold); }

/* A tile against panels of keys in 8-bit integers, three times as fast: against a threshold lowered by a bound on the
 * rounding; the few survivors are scored in full. What is skipped cannot be among the K best. */

/* Scores and offers the survivors that wait: their rows of `keys` are fetched from far away meanwhile. */
static __attribute__((noinline)) void settle(Tile *tile, const Keys *keys, int num_keys) {
    real score[WAITING]; /* all of them first: while a list is changed, no product could start */
    for (int i = 0; i < tile->pending; i++) {
        const real *key = keys->rows + (long)tile->waiting[i].key * keys->dim;
        score[i] = product(tile->columns + tile->waiting[i].row, key, keys->dim);
    }
    for (int i = 0; i < tile->pending; i++)
        offer(tile, tile->waiting[i].row, score[i], keys->id[tile->waiting[i].key], num_keys);
    tile->survived += tile->pending;
    tile->pending = 0;
    tile->started = -1; /* the thresholds have risen */
}

#ifdef BYTES
/* The keys whose bit is set wait until there are some more. */
static __attribute__((noinline)) void queue_survivors(Tile *tile, const Keys *keys, long panel, int first_row, int from,
                                                      uint64_t *left, int num_keys) {
    uint64_t filled = lowest_bits(filled_lanes(keys, panel)) >> from & lowest_bits(3 * BYTE_LANES);
    for (int j = 0; j < BYTE_ROWS; j++)
        for (left[j] &= filled; left[j]; left[j] &= left[j] - 1) {
            long key = panel * PANEL + from + __builtin_ctzll(left[j]);
            __builtin_prefetch(keys->rows + key * keys->dim);
            __builtin_prefetch(keys->rows + (key + 1) * keys->dim - 1);
            tile->waiting[tile->pending].key = (int32_t)key;
            tile->waiting[tile->pending++].row = first_row + j;
            if (tile->pending == WAITING) settle(tile, keys, num_keys);
        }
}

/* What the sums of SUPER panels start from, so that those above the threshold end up >= 0. For integer sums I,
 * <q, k> <= s_q s_k I + e_q |hat k| + |q| e_k with scales s, what bytes stand for (hat) and the errors e of rounding. */
static __attribute__((noinline)) void start_super(Tile *tile, const Keys *keys, long super) {
    for (int row = 0; row < ROWS; row++) {
        float error = tile->norm[row] * keys->error[super] + tile->error[row] * keys->reach[super];
        float x = (tile->low[row] - error) * tile->inverse[row] * keys->inverse[super];
        /* one less, and a relative 2^-20, for the rounding of this formula and of `low` */
        x = floorf(x - (fabsf(x) * 0x1p-20f + 1));
        x = LARGEST_SUM + 1 < x ? LARGEST_SUM + 1 : x;
        x = x > -LARGEST_SUM ? x : -LARGEST_SUM; /* a NaN (-inf * 0) as well: everything survives */
        int32_t start = -((int32_t)x + tile->offset[row]) - 1;
        if (BYTE_CHANNELS == 2) start = (int32_t)((start & 0xffff) | (uint32_t)start << 16);
        tile->start[row] = start;
    }
    tile->started = super;
}

/* The keys `from` ... of a panel against BYTE_ROWS queries, whose integer sums start in `start`. */
INLINE void scan_block(Tile *tile, const Keys *keys, long panel, int first_row, int from, int num_keys) {
    const uint8_t *k = keys->bytes + (panel * PANEL * keys->groups + from) * BYTE_CHANNELS;
    const int8_t *q = tile->bytes + first_row * QUERY_BYTES;
    sums sum[BYTE_ROWS][3];
    start_sums(sum, tile->start + first_row);
    for (int i = 0; i < keys->groups; i++, k += PANEL * BYTE_CHANNELS, q += ROWS * QUERY_BYTES) add_group(sum, k, q);
    if (all_negative(sum)) return;
    uint64_t left[BYTE_ROWS];
    find_left(sum, left);
    queue_survivors(tile, keys, panel, first_row, from, left, num_keys);
}

INLINE void scan_bytes(Tile *tile, const Keys *keys, long panel, int num_keys) {
    if (tile->started != panel / SUPER) start_super(tile, keys, panel / SUPER);
    for (int from = 0; from < PANEL; from += 3 * BYTE_LANES)
        for (int r = 0; r < ROWS; r += BYTE_ROWS) scan_block(tile, keys, panel, r, from, num_keys);
}
#endif

INLINE void scan(Tile *tile, const Keys *keys, long panel, int num_keys) {
#ifdef BYTES
    /* the first keys all enter the lists; and a screen that lets most through (ties, outliers) costs more than it saves */
    if (keys->bytes && !tile->exact && tile->threshold[0] > -INFINITY) {
        tile->seen++;
        scan_bytes(tile, keys, panel, num_keys);
        tile->exact = tile->survived - tile->inserted > 64 + 3 * tile->seen;
        return;
    }
#endif
    tile->scored++;
    scan_columns(tile, keys, panel, num_keys);
}

/* Tiles of queries against all panels of keys, in the order of the panels. */

#define FEW_SEEDS 16 /* panels that start the thresholds, at least */

/* In an order that has nothing to do with the scores a row takes K (1 + ln(M / K)) keys into its list, fewer after its
 * first thresholds. Where scores rise from panel to panel every key enters, and this many say so. */
static long most_inserts(const Keys *keys, int num_keys) {
    double rounds = log2((double)keys->count / num_keys + 2);
    return (long)(ROWS * (2 * num_keys * rounds + 32));
}

/* The remaining panels in an order that no data set knows: steps by the golden ratio, so new maxima are rare. */
static void scan_scattered(Tile *tile, const Keys *keys, long from, int num_keys) {
    long rest = keys->panels - from, step = (long)(rest * 0.6180339887498949) | 1;
    while (rest > 1) { /* the step must share no factor with the number of panels */
        long a = rest, b = step;
        while (b) { long c = a % b; a = b; b = c; }
        if (a == 1) break;
        step++;
    }
    for (long i = 0, at = 0; i < rest; i++, at = (at + step) % rest)
        if (!hopeless(tile, keys->norm[from + at])) scan(tile, keys, from + at, num_keys);
    settle(tile, keys, num_keys);
    tile->done = 1;
}

/* All panels for each tile, by descending norm if they come so. */
static void search_panels(Tile *all, int tiles, const Keys *keys, int norm_order, int num_keys) {
    long limit = most_inserts(keys, num_keys);
    for (int t = 0; t < tiles; t++) {
        long many = MIN(keys->panels, MAX(40, 2 * num_keys) + keys->panels / 64);
        int try_few = norm_order && keys->panels > 8 * FEW_SEEDS;
        if (try_few) seed(&all[t], keys, 0, FEW_SEEDS, num_keys);
        /* where norms do not end the rows soon, more seeds are repaid */
        if (!try_few || !hopeless(&all[t], keys->norm[8 * FEW_SEEDS])) seed(&all[t], keys, 0, many, num_keys);
    }
    for (long super = 0; super < keys->panels; super += SUPER) {
        long end = MIN(super + SUPER, keys->panels);
        for (Tile *tile = all; tile < all + tiles; tile++) {
            for (long panel = super; panel < end && !tile->done; panel++) {
                if (hopeless(tile, keys->norm[panel])) tile->done = norm_order;
                else scan(tile, keys, panel, num_keys);
                if (tile->inserted > limit) scan_scattered(tile, keys, panel + 1, num_keys);
            }
            settle(tile, keys, num_keys);
        }
    }
}
