/* ROWS queries against panels of keys.
 *
 * Two scans find the same keys. `scan_columns` scores every pair of a panel in registers and compares with each row's
 * running threshold (its K-th best score so far). `scan_bytes` does so with 8-bit integers, three times as fast, against
 * a threshold lowered by a bound on the rounding, and scores the few survivors again in full: what it skips cannot be
 * among the K best.
 */

/* Up to so many best keys are kept in order, in one register where it has room; of more, twice as many are collected
 * before the smaller half is dropped. */
#define SHORT_LIST 16
#define BUFFER(num_keys) ((num_keys) <= SHORT_LIST ? 0 : 2 * (num_keys) + 16)

#define WAITING 16
#define MOST_SETS 8 /* of PANEL groups each, for the first thresholds */

typedef struct {
    int stride;                    /* places of a list: K, or SHORT_LIST where K is smaller */
    Ranked *buffer;                /* (ROWS, BUFFER(K)), what is collected for long lists, */
    int collected[ROWS];           /* and how many that are */
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
    int32_t start[ROWS];           /* of the integer sums in the panels of super `started` (-1: of none) */
    long started;
    int pending;
    struct { int32_t row, key; } waiting[WAITING]; /* survivors of the screen that have no score yet */
    real *score;                   /* (ROWS, stride), falling */
    int32_t *id;                   /* (ROWS, stride) */
} Tile;

/* Packs the queries which[0], which[1], ... (NULL: the first ones) of the matrix `query`. */
static void pack_tile(Tile *tile, const real *query, const int32_t *which, int count, int dim, int num_keys) {
    tile->count = count;
    tile->done = tile->exact = tile->pending = 0;
    tile->started = -1;
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
        tile->collected[row] = 0;
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

/* Drops all but the K best of what a long list has collected, and raises the threshold to the worst of these. */
static __attribute__((noinline)) void drop_half(Tile *tile, int row, int num_keys) {
    Ranked *all = tile->buffer + (long)row * BUFFER(num_keys);
    int count = tile->collected[row];
    if (count < num_keys) return;
    select_rank(all, count, count - num_keys);
    memmove(all, all + count - num_keys, num_keys * sizeof(Ranked));
    tile->collected[row] = num_keys;
    real worst = all[0].value;
    for (int i = 1; i < num_keys; i++) worst = MIN(worst, all[i].value);
    if (worst > tile->threshold[row]) tile->threshold[row] = worst;
}

/* Puts a score in order into a short list; of equal ones the first stays ahead. */
static inline void insert(Tile *tile, int row, real score, int32_t id, int num_keys) {
    real *scores = tile->score + row * tile->stride;
    int32_t *ids = tile->id + row * tile->stride;
#if REGISTER_ROWS == 8 && !defined(DOUBLE) /* without a branch on the place: it cannot be predicted */
    __m512 old = _mm512_loadu_ps(scores), fresh = _mm512_set1_ps(score);
    __m512i old_id = _mm512_loadu_si512(ids), shifted = _mm512_castps_si512(old);
    __mmask16 later = _mm512_cmp_ps_mask(old, fresh, _CMP_LT_OQ), here = later & -later;
    shifted = _mm512_alignr_epi32(shifted, shifted, 15);
    old = _mm512_mask_mov_ps(old, later, _mm512_castsi512_ps(shifted));
    old_id = _mm512_mask_mov_epi32(old_id, later, _mm512_alignr_epi32(old_id, old_id, 15));
    _mm512_storeu_ps(scores, _mm512_mask_mov_ps(old, here, fresh));
    _mm512_storeu_si512(ids, _mm512_mask_mov_epi32(old_id, here, _mm512_set1_epi32(id)));
#else
    int at = num_keys - 1;
    for (; at > 0 && scores[at - 1] < score; at--) scores[at] = scores[at - 1], ids[at] = ids[at - 1];
    scores[at] = score;
    ids[at] = id;
#endif
    if (scores[num_keys - 1] > tile->threshold[row]) tile->threshold[row] = scores[num_keys - 1];
}

/* Takes a key that beats the threshold among the K best of a row. */
static inline void offer(Tile *tile, int row, real score, int32_t id, int num_keys) {
    if (!(score > tile->threshold[row])) return;
    if (num_keys <= SHORT_LIST) {
        insert(tile, row, score, id, num_keys);
    } else {
        tile->buffer[(long)row * BUFFER(num_keys) + tile->collected[row]++] = (Ranked){score, id};
        if (tile->collected[row] == BUFFER(num_keys)) drop_half(tile, row, num_keys);
    }
    tile->low[row] = (float)tile->threshold[row]; /* the screen allows for this rounding */
    tile->inserted++;
}

/* Puts what long lists have collected in order, largest first. */
static void finish_lists(Tile *tile, int num_keys) {
    for (int row = 0; num_keys > SHORT_LIST && row < tile->count; row++) {
        Ranked *all = tile->buffer + (long)row * BUFFER(num_keys);
        drop_half(tile, row, num_keys);
        sort_ranked(all, tile->collected[row]);
        for (int i = 0, from = tile->collected[row] - 1; from >= 0; i++, from--) {
            tile->score[row * tile->stride + i] = all[from].value;
            tile->id[row * tile->stride + i] = all[from].id;
        }
    }
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

/* Whether no key of the panel can beat a threshold: <q, k> <= |q| |k|. */
static inline int hopeless(const Tile *tile, float norm) { return !any_above(tile->reach * norm, tile->threshold); }

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
