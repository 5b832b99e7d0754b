/* A tile against panels of keys in full precision: every pair of a panel is scored in registers and compared with the
 * row's threshold. */

/* The score of one pair, summed in the order of multiply(). */
static inline real product(const real *q, int step_q, const real *k, int step_k, int dim) {
    real sum = 0;
    for (int i = 0; i < dim; i++) sum = MULTIPLY_ADD(q[i * step_q], k[i * step_k], sum);
    return sum;
}

/* Offers the keys of a panel whose bit is set; the panel's columns have just been read. */
static void offer_bits(Tile *tile, const Keys *keys, int row, long panel, int from, uint64_t bits, int num_keys) {
    const real *columns = keys->columns + panel * PANEL * keys->dim;
    for (; bits; bits &= bits - 1) {
        int lane = from + __builtin_ctzll(bits);
        real score = product(tile->columns + row, ROWS, columns + lane, PANEL, keys->dim);
        offer(tile, row, score, keys->id[panel * PANEL + lane], num_keys);
    }
}

static inline uint64_t lowest_bits(int count) { return count < 64 ? ((uint64_t)1 << count) - 1 : ~(uint64_t)0; }

/* sum[j][v] = products of REGISTER_ROWS queries and 3 * LANES keys. Every index into `sum` must be a constant, or the
 * compiler keeps it in memory: hence the unrolled loops. */
INLINE void multiply(vec sum[REGISTER_ROWS][3], const real *q, const real *k, int dim) {
    UNROLL for (int j = 0; j < REGISTER_ROWS; j++) sum[j][0] = sum[j][1] = sum[j][2] = set1(0);
    for (int i = 0; i < dim; i++, k += PANEL, q += ROWS) {
        vec k0 = load(k), k1 = load(k + LANES), k2 = load(k + 2 * LANES);
        UNROLL for (int j = 0; j < REGISTER_ROWS; j++) {
            vec one = set1(q[j]);
            sum[j][0] = fma_(one, k0, sum[j][0]);
            sum[j][1] = fma_(one, k1, sum[j][1]);
            sum[j][2] = fma_(one, k2, sum[j][2]);
        }
    }
}

static void scan_columns(Tile *tile, const Keys *keys, long panel, int num_keys) {
    int filled = filled_lanes(keys, panel);
    const real *columns = keys->columns + panel * PANEL * keys->dim;
    for (int c = 0; c < filled; c += 3 * LANES)
        for (int r = 0; r < ROWS; r += REGISTER_ROWS) {
            vec sum[REGISTER_ROWS][3];
            uint32_t above[REGISTER_ROWS], any = 0;
            uint64_t bits[REGISTER_ROWS];
            multiply(sum, tile->columns + r, columns + c, keys->dim);
            UNROLL for (int j = 0; j < REGISTER_ROWS; j++) {
                above[j] = gt(max_(max_(sum[j][0], sum[j][1]), sum[j][2]), set1(tile->threshold[r + j]));
                any |= above[j];
            }
            if (!any) continue;
            UNROLL for (int j = 0; j < REGISTER_ROWS; j++) {
                bits[j] = 0;
                if (above[j])
                    UNROLL for (int v = 0; v < 3; v++)
                        bits[j] |= (uint64_t)gt(sum[j][v], set1(tile->threshold[r + j])) << (v * LANES);
            }
            for (int j = 0; j < REGISTER_ROWS; j++)
                offer_bits(tile, keys, r + j, panel, c, bits[j] & lowest_bits(filled - c), num_keys);
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
    for (int row = 0; row < tile->count; row++) {
        real *groups = best[row], low = INFINITY, high = -INFINITY;
        for (int lane = 0; lane < (sets - 1) * PANEL + lanes; lane++) low = MIN(low, groups[lane]), high = MAX(high, groups[lane]);
        for (int lane = lanes; lane < PANEL; lane++) groups[lane] = -INFINITY;
        /* for product(), which may round otherwise than multiply(), and for maxima that are all equal or zero */
        real margin = 4 * keys->dim * (real)EPSILON * tile->norm[row] * largest + (real)1e-37;
        if (!(high - low < INFINITY)) continue;
        for (int halving = 0; halving < 12; halving++) {
            real middle = low + (high - low) / 2;
            int above = 0;
            for (int lane = 0; lane < sets * PANEL; lane += LANES)
                above += __builtin_popcount(gt(load(groups + lane), set1(middle)));
            if (above >= num_keys) low = middle; else high = middle;
        }
        tile->threshold[row] = MAX(tile->threshold[row], low - margin);
        tile->low[row] = (float)tile->threshold[row];
    }
}

/* Whether no key of the panel can beat a threshold: <q, k> <= |q| |k|. */
static inline int hopeless(const Tile *tile, float norm) { return !any_above(tile->reach * norm, tile->threshold); }
