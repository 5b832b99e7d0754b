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
        comparison one = above(largest[j], set1(threshold[j]));
        any = j ? either(any, one) : one;
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
