/* ROWS queries against panels of keys.
 *
 * Two scans find the same keys. `scan_columns` scores every pair of a panel in registers and compares with each row's
 * running threshold (its K-th best score so far). `scan_bytes` does so with 8-bit integers, three times as fast, against
 * a threshold lowered by a bound on the rounding, and scores the few survivors again in full: what it skips cannot be
 * among the K best.
 */

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#if REGISTER_ROWS == 8 && !defined(DOUBLE)
#define SHORT_LIST 16 /* places of a list that fit one register */
#else
#define SHORT_LIST 0
#endif

#define WAITING 16

typedef struct {
    int stride;                    /* places of a list: K, or SHORT_LIST where K is smaller */
    int count, done, exact;        /* rows that are queries; nothing more to find; no integer screen any more */
    long inserted, survived;       /* keys that entered a list, that passed the screen */
    long scored, seen;             /* panels scanned in full, by the screen */
    real *columns;                 /* (dim, ROWS) */
    int32_t *bytes;                /* (dim4, ROWS): four channels of a query in each */
    rows threshold;                /* score[K - 1]; +inf for rows that are no query */
    rows reach;                    /* |q|, rounded up */
    rows slack;                    /* rounding of the bounds of `tree` */
    float low[ROWS];               /* threshold, rounded down */
    float norm[ROWS];              /* |q|, rounded up; */
    float error[ROWS];             /* |q - scale * byte|, rounded up */
    float inverse[ROWS];           /* 1 / scale */
    int32_t offset[ROWS];          /* 128 * sum of the bytes: what the unsigned keys add */
    int pending;
    struct { int32_t row, key; } waiting[WAITING]; /* survivors of the screen that have no score yet */
    real *score;                   /* (ROWS, stride), falling */
    int32_t *id;                   /* (ROWS, stride) */
} Tile;

/* Packs the queries which[0], which[1], ... (NULL: the first ones) of the matrix `query`. */
static void pack_tile(Tile *tile, const real *query, const int32_t *which, int count, int dim, int num_keys) {
    tile->count = count;
    tile->done = tile->exact = tile->pending = 0;
    tile->inserted = tile->survived = tile->scored = tile->seen = 0;
    for (int row = 0; row < ROWS; row++) {
        double square = 0;
        float largest = 0, wrong;
        for (int i = 0; i < dim; i++) {
            real value = row < count ? query[(long)(which ? which[row] : row) * dim + i] : 0;
            tile->columns[i * ROWS + row] = value;
            square += (double)value * value;
            largest = fmaxf(largest, fabsf((float)value));
        }
        tile->norm[row] = tile->reach[row] = round_up(sqrt(square), dim, EPSILON);
        tile->threshold[row] = row < count ? -INFINITY : INFINITY;
        tile->low[row] = (float)tile->threshold[row];
        float scale = largest / 127, inverse = scale > 0 ? 1 / scale : 0;
        int sum = 0;
        square = 0;
        for (int i = 0; i < 4 * ((dim + 3) / 4); i++) {
            float value = i < dim ? (float)tile->columns[i * ROWS + row] : 0;
            int rounded = (int)lrintf(value * inverse);
            double rest = (i < dim ? (double)tile->columns[i * ROWS + row] : 0) - (double)scale * rounded;
            ((int8_t *)&tile->bytes[(i / 4) * ROWS + row])[i % 4] = (int8_t)rounded;
            sum += rounded;
            square += rest * rest;
        }
        wrong = round_up(sqrt(square), dim, EPSILON);
        tile->error[row] = wrong;
        tile->inverse[row] = inverse;
        tile->offset[row] = 128 * sum;
        if (row < count && scale != 0 && (scale < TINY || scale > HUGE_SCALE)) tile->exact = 1;
    }
    tile->stride = MAX(num_keys, SHORT_LIST);
    for (int i = 0; i < ROWS * tile->stride; i++) tile->score[i] = -INFINITY, tile->id[i] = -1;
}

/* Puts a key that beats the K-th into the list of a row; of equal scores the one that came first stays ahead. */
static inline void offer(Tile *tile, int row, real score, int32_t id, int num_keys) {
    if (!(score > tile->threshold[row])) return;
    real *scores = tile->score + row * tile->stride;
    int32_t *ids = tile->id + row * tile->stride;
#if SHORT_LIST
    if (num_keys <= SHORT_LIST) { /* without a branch on the place: it cannot be predicted */
        __m512 old = _mm512_loadu_ps(scores), fresh = _mm512_set1_ps(score);
        __m512i old_id = _mm512_loadu_si512(ids);
        __mmask16 later = _mm512_cmp_ps_mask(old, fresh, _CMP_LT_OQ), here = later & -later;
        __m512i shifted = _mm512_castps_si512(old);
        shifted = _mm512_alignr_epi32(shifted, shifted, 15);
        old = _mm512_mask_mov_ps(old, later, _mm512_castsi512_ps(shifted));
        old_id = _mm512_mask_mov_epi32(old_id, later, _mm512_alignr_epi32(old_id, old_id, 15));
        _mm512_storeu_ps(scores, _mm512_mask_mov_ps(old, here, fresh));
        _mm512_storeu_si512(ids, _mm512_mask_mov_epi32(old_id, here, _mm512_set1_epi32(id)));
    } else
#endif
    {
        int low = 0, high = num_keys - 1; /* the first place whose score is smaller, the last one at most */
        while (low < high) {
            int middle = (low + high) / 2;
            if (scores[middle] < score) high = middle; else low = middle + 1;
        }
        memmove(scores + low + 1, scores + low, (num_keys - 1 - low) * sizeof(real));
        memmove(ids + low + 1, ids + low, (num_keys - 1 - low) * sizeof(int32_t));
        scores[low] = score;
        ids[low] = id;
    }
    real worst = scores[num_keys - 1];
    if (worst > tile->threshold[row]) tile->threshold[row] = worst;
    tile->low[row] = (float)tile->threshold[row]; /* the screen allows for this rounding */
    tile->inserted++;
}

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
 * The keys of one lane of all panels are a group; a value that K group maxima exceed is exceeded by K keys.
 */
static void seed(Tile *tile, const Keys *keys, long first, long end, int num_keys) {
    real best[ROWS][PANEL], largest = 0;
    if (num_keys > PANEL / 2 || keys->count < PANEL) return; /* too few groups */
    if (filled_lanes(keys, end - 1) < PANEL) end--;
    if (first >= end) return;
    for (long panel = first; panel < end; panel++) {
        const real *columns = keys->columns + panel * PANEL * keys->dim;
        for (int c = 0; c < PANEL; c += 3 * LANES)
            for (int r = 0; r < ROWS; r += REGISTER_ROWS) {
                vec sum[REGISTER_ROWS][3];
                multiply(sum, tile->columns + r, columns + c, keys->dim);
                UNROLL for (int j = 0; j < REGISTER_ROWS; j++)
                    UNROLL for (int v = 0; v < 3; v++) {
                        real *place = best[r + j] + c + v * LANES;
                        store(place, panel > first ? max_(load(place), sum[j][v]) : sum[j][v]);
                    }
            }
        tile->scored++;
        largest = MAX(largest, keys->norm[panel]);
    }
    for (int row = 0; row < tile->count; row++) {
        real low = INFINITY, high = -INFINITY;
        for (int lane = 0; lane < PANEL; lane++) low = MIN(low, best[row][lane]), high = MAX(high, best[row][lane]);
        /* for product(), which may round otherwise than multiply(), and for maxima that are all equal or zero */
        real margin = 4 * keys->dim * (real)EPSILON * tile->norm[row] * largest + (real)1e-37;
        if (!(high - low < INFINITY)) continue;
        for (int halving = 0; halving < 12; halving++) {
            real middle = low + (high - low) / 2;
            int above = 0;
            for (int lane = 0; lane < PANEL; lane += LANES)
                above += __builtin_popcount(gt(load(best[row] + lane), set1(middle)));
            if (above >= num_keys) low = middle; else high = middle;
        }
        tile->threshold[row] = low - margin;
        tile->low[row] = (float)tile->threshold[row];
    }
}

/* Scores and offers the survivors that wait: their rows of `keys` are fetched from far away meanwhile. */
static __attribute__((noinline)) void settle(Tile *tile, const Keys *keys, int num_keys) {
    for (int i = 0; i < tile->pending; i++) {
        int row = tile->waiting[i].row, key = tile->waiting[i].key;
        real score = product(tile->columns + row, ROWS, keys->rows + (long)key * keys->dim, 1, keys->dim);
        offer(tile, row, score, keys->id[key], num_keys);
    }
    tile->survived += tile->pending;
    tile->pending = 0;
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

INLINE __m512i all3(__m512i a, __m512i b, __m512i c) { return _mm512_ternarylogic_epi32(a, b, c, 0x80); }

/* For integer sums I: what <= threshold means, <q, k> <= s_q s_k I + e_q |k| + |q| e_k with the errors e of rounding. */
static inline __m256i starts(const Tile *tile, const Keys *keys, long panel) {
    __m256 error = _mm256_mul_ps(_mm256_loadu_ps(tile->norm), _mm256_set1_ps(keys->error[panel]));
    /* |scale * byte| <= |k| + e_k */
    __m256 hat = _mm256_set1_ps(keys->norm[panel] + keys->error[panel]);
    error = _mm256_fmadd_ps(_mm256_loadu_ps(tile->error), hat, error);
    __m256 x = _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(tile->low), error), _mm256_loadu_ps(tile->inverse));
    x = _mm256_mul_ps(x, _mm256_set1_ps(keys->inverse[panel]));
    /* one less, and a relative 2^-20, for the rounding of this formula and of `low` */
    __m256 slack = _mm256_fmadd_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), x), _mm256_set1_ps(0x1p-20f),
                                   _mm256_set1_ps(1.0f));
    x = _mm256_floor_ps(_mm256_sub_ps(x, slack));
    /* in this order a NaN (-inf * 0) becomes the lower limit: everything survives */
    x = _mm256_max_ps(_mm256_min_ps(_mm256_set1_ps(1e9f), x), _mm256_set1_ps(-1e9f));
    __m256i limit = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_loadu_si256((const __m256i *)tile->offset));
    return _mm256_xor_si256(limit, _mm256_set1_epi32(-1)); /* -limit - 1: sums above the limit end up >= 0 */
}

static void scan_bytes(Tile *tile, const Keys *keys, long panel, int num_keys) {
    int dim4 = keys->dim4;
    const uint8_t *bytes = keys->bytes + panel * PANEL * 4 * dim4;
    int32_t start[ROWS];
    _mm256_storeu_si256((__m256i *)start, starts(tile, keys, panel));
    __m512i sum[ROWS][3];
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
#endif

/* Whether no key of the panel can beat a threshold: <q, k> <= |q| |k|. */
static inline int hopeless(const Tile *tile, float norm) { return !any_above(tile->reach * norm, tile->threshold); }

static inline void scan(Tile *tile, const Keys *keys, long panel, int num_keys) {
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
