/* A tile against panels of keys in 8-bit integers, three times as fast: against a threshold lowered by a bound on the
 * rounding; the few survivors are scored in full. What is skipped cannot be among the K best. */

/* Scores and offers the survivors that wait: their rows of `keys` are fetched from far away meanwhile. */
static __attribute__((noinline)) void settle(Tile *tile, const Keys *keys, int num_keys) {
    for (int i = 0; i < tile->pending; i++) {
        int row = tile->waiting[i].row, key = tile->waiting[i].key;
        real score = product(tile->columns + row, ROWS, keys->rows + (long)key * keys->dim, 1, keys->dim);
        offer(tile, row, score, keys->id[key], num_keys);
    }
    tile->survived += tile->pending;
    tile->pending = 0;
    tile->started = -1; /* the thresholds have risen */
}

#ifdef BYTES
/* Assembly, since GCC 12 moves the sums through memory when they are intrinsics, three times as slow: one number in all
 * lanes, and sum + four products of bytes in each lane. */
INLINE __m512i spread(const int32_t *number) {
    __m512i all;
    __asm__("vpbroadcastd %1, %0" : "=v"(all) : "m"(*number));
    return all;
}

INLINE __m512i add_products(__m512i sum, __m512i k, const int32_t *q) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(k), "m"(*q));
    return sum;
}

/* The keys whose bit is set wait until there are some more. */
static __attribute__((noinline)) void queue_survivors(Tile *tile, const Keys *keys, long panel, uint64_t *bits,
                                                      int num_keys) {
    for (int j = 0; j < ROWS; j++)
        for (bits[j] &= lowest_bits(filled_lanes(keys, panel)); bits[j]; bits[j] &= bits[j] - 1) {
            long key = panel * PANEL + __builtin_ctzll(bits[j]);
            __builtin_prefetch(keys->rows + key * keys->dim);
            __builtin_prefetch(keys->rows + (key + 1) * keys->dim - 1);
            tile->waiting[tile->pending].key = (int32_t)key;
            tile->waiting[tile->pending++].row = j;
            if (tile->pending == WAITING) settle(tile, keys, num_keys);
        }
}

INLINE __m512i all3(__m512i a, __m512i b, __m512i c) { return _mm512_ternarylogic_epi32(a, b, c, 0x80); }

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
    x = _mm256_max_ps(_mm256_min_ps(_mm256_set1_ps(1e9f), x), _mm256_set1_ps(-1e9f));
    __m256i limit = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_loadu_si256((const __m256i *)tile->offset));
    _mm256_storeu_si256((__m256i *)tile->start, _mm256_xor_si256(limit, _mm256_set1_epi32(-1))); /* -limit - 1 */
    tile->started = super;
}

INLINE void scan_bytes(Tile *tile, const Keys *keys, long panel, int num_keys) {
    int dim4 = keys->dim4;
    const uint8_t *bytes = keys->bytes + panel * PANEL * 4 * dim4;
    const int32_t *start = tile->start;
    __m512i sum[ROWS][3];
    if (tile->started != panel / SUPER) start_super(tile, keys, panel / SUPER);
    UNROLL for (int j = 0; j < ROWS; j++)
        sum[j][0] = spread(start + j), sum[j][1] = spread(start + j), sum[j][2] = spread(start + j);
    for (int i = 0; i < dim4; i++) {
        const uint8_t *k = bytes + i * 4 * PANEL;
        __m512i k0 = _mm512_loadu_si512(k), k1 = _mm512_loadu_si512(k + 64), k2 = _mm512_loadu_si512(k + 128);
        UNROLL for (int j = 0; j < ROWS; j++) {
            const int32_t *one = tile->bytes + i * ROWS + j;
            sum[j][0] = add_products(sum[j][0], k0, one);
            sum[j][1] = add_products(sum[j][1], k1, one);
            sum[j][2] = add_products(sum[j][2], k2, one);
        }
    }
    __m512i row[ROWS]; /* the sign bit stays where all are negative */
    UNROLL for (int j = 0; j < ROWS; j++) row[j] = all3(sum[j][0], sum[j][1], sum[j][2]);
    __m512i all = all3(all3(row[0], row[1], row[2]), all3(row[3], row[4], row[5]), all3(row[6], row[7], row[7]));
    if (_mm512_movepi32_mask(all) == 0xffff) return;
    uint64_t bits[ROWS];
    UNROLL for (int j = 0; j < ROWS; j++) {
        bits[j] = 0;
        if (_mm512_movepi32_mask(row[j]) != 0xffff)
            bits[j] = ~((uint64_t)_mm512_movepi32_mask(sum[j][0]) | (uint64_t)_mm512_movepi32_mask(sum[j][1]) << 16 |
                        (uint64_t)_mm512_movepi32_mask(sum[j][2]) << 32);
    }
    queue_survivors(tile, keys, panel, bits, num_keys);
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
