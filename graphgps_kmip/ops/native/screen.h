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
