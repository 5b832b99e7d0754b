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
    uint64_t filled = lowest_bits(filled_lanes(keys, panel)) >> from;
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
    __m256 error = _mm256_mul_ps(_mm256_loadu_ps(tile->norm), _mm256_set1_ps(keys->error[super]));
    error = _mm256_fmadd_ps(_mm256_loadu_ps(tile->error), _mm256_set1_ps(keys->reach[super]), error);
    __m256 x = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(tile->low), error), _mm256_loadu_ps(tile->inverse));
    x = _mm256_mul_ps(x, _mm256_set1_ps(keys->inverse[super]));
    /* one less, and a relative 2^-20, for the rounding of this formula and of `low` */
    __m256 slack = _mm256_fmadd_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x), _mm256_set1_ps(0x1p-20f),
                                   _mm256_set1_ps(1.0f));
    x = _mm256_floor_ps(_mm256_sub_ps(x, slack));
    /* in this order a NaN (-inf * 0) becomes the lower limit: everything survives */
    x = _mm256_max_ps(_mm256_min_ps(_mm256_set1_ps(LARGEST_SUM + 1), x), _mm256_set1_ps(-LARGEST_SUM));
    __m256i limit = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_loadu_si256((const __m256i *)tile->offset));
    __m256i start = _mm256_xor_si256(limit, _mm256_set1_epi32(-1)); /* -limit - 1 */
#if BYTE_CHANNELS == 2 /* in both halves */
    start = _mm256_blend_epi16(start, _mm256_slli_epi32(start, 16), 0xaa);
#endif
    _mm256_storeu_si256((__m256i *)tile->start, start);
    tile->started = super;
}

/* The keys `from` ... of a panel against BYTE_ROWS queries, whose integer sums start in `start`. */
INLINE void scan_block(Tile *tile, const Keys *keys, long panel, int first_row, int from, int num_keys) {
    const uint8_t *k = keys->bytes + (panel * PANEL * keys->groups + from) * BYTE_CHANNELS;
    const int32_t *start = tile->start + first_row, *q = tile->bytes + first_row;
    sums sum[BYTE_ROWS][3];
    UNROLL for (int j = 0; j < BYTE_ROWS; j++)
        sum[j][0] = spread(start + j), sum[j][1] = spread(start + j), sum[j][2] = spread(start + j);
    for (int i = 0; i < keys->groups; i++, k += PANEL * BYTE_CHANNELS, q += ROWS) {
        sums k0 = load_bytes(k), k1 = load_bytes(k + sizeof(sums)), k2 = load_bytes(k + 2 * sizeof(sums));
        UNROLL for (int j = 0; j < BYTE_ROWS; j++) {
            sum[j][0] = add_products(sum[j][0], k0, q + j);
            sum[j][1] = add_products(sum[j][1], k1, q + j);
            sum[j][2] = add_products(sum[j][2], k2, q + j);
        }
    }
    const uint32_t all_lanes = (1u << BYTE_LANES) - 1;
    sums row[BYTE_ROWS], all; /* the sign bit stays where all are negative */
    UNROLL for (int j = 0; j < BYTE_ROWS; j++) row[j] = all3(sum[j][0], sum[j][1], sum[j][2]);
    all = all3(row[0], row[1], all3(row[2], row[3], row[3]));
    if (BYTE_ROWS == 8) all = all3(all, all3(row[4], row[5], row[6]), row[7]);
    if (negative(all) == all_lanes) return;
    uint64_t left[BYTE_ROWS];
    UNROLL for (int j = 0; j < BYTE_ROWS; j++) {
        left[j] = 0;
        if (negative(row[j]) != all_lanes)
            left[j] = ~((uint64_t)negative(sum[j][0]) | (uint64_t)negative(sum[j][1]) << BYTE_LANES |
                        (uint64_t)negative(sum[j][2]) << 2 * BYTE_LANES) & lowest_bits(3 * BYTE_LANES);
    }
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
