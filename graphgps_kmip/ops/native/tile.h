/* A tile: ROWS queries, their thresholds (the K-th best score so far) and the lists of their best keys; numbers with the
 * keys they belong to, and their selection and sorting. */

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

typedef struct { real value; int32_t id; } Ranked;

/* Hoare's partition: afterwards a[0 .. *last] <= a[*first .. n - 1], and what is between is equal to the pivot. */
static inline void partition(Ranked *a, long n, long *last, long *first) {
    real x = a[0].value, y = a[n / 2].value, z = a[n - 1].value;
    real pivot = MAX(MIN(x, y), MIN(MAX(x, y), z));
    long i = 0, j = n - 1;
    while (i <= j) {
        while (a[i].value < pivot) i++;
        while (a[j].value > pivot) j--;
        if (i <= j) {
            Ranked spare = a[i];
            a[i++] = a[j];
            a[j--] = spare;
        }
    }
    *last = j;
    *first = i;
}

/* Moves the smaller ones of n numbers before place `middle`. */
static void select_rank(Ranked *a, long n, long middle) {
    while (n > 1) {
        long last, first;
        partition(a, n, &last, &first);
        if (middle <= last) {
            n = last + 1;
        } else if (middle >= first) {
            a += first;
            n -= first;
            middle -= first;
        } else {
            return;
        }
    }
}

/* Sorts n numbers so that they rise. */
static void sort_ranked(Ranked *a, long n) {
    while (n > 16) {
        long last, first;
        partition(a, n, &last, &first);
        if (last + 1 < n - first) { /* the shorter part first: the recursion stays log n deep */
            sort_ranked(a, last + 1);
            a += first;
            n -= first;
        } else {
            sort_ranked(a + first, n - first);
            n = last + 1;
        }
    }
    for (long i = 1; i < n; i++) {
        Ranked item = a[i];
        long j = i;
        for (; j > 0 && a[j - 1].value > item.value; j--) a[j] = a[j - 1];
        a[j] = item;
    }
}

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
    int8_t *bytes;                 /* (groups, ROWS, QUERY_BYTES): a group of channels of a query, two channels twice */
    rows threshold;                /* score[K - 1]; +inf for rows that are no query */
    rows reach;                    /* |q|, rounded up */
    rows slack;                    /* rounding of the bounds of `tree` */
    float low[ROWS];               /* threshold, rounded down */
    float norm[ROWS];              /* |q|, rounded up; */
    float error[ROWS];             /* |q - scale * byte|, rounded up */
    float inverse[ROWS];           /* 1 / scale */
    int32_t offset[ROWS];          /* BYTE_OFFSET * sum of the bytes: what it adds */
    int32_t start[ROWS];           /* of the integer sums in the panels of super `started` (-1: of none) */
    long started;
    int pending;
    struct { int32_t row, key; } waiting[WAITING]; /* survivors of the screen that have no score yet */
    real *score;                   /* (ROWS, stride), descending */
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
        float largest = 0, pair = 0, last = 0;
        for (int i = 0; i < dim; i++) {
            real value = row < count ? query[(long)(which ? which[row] : row) * dim + i] : 0;
            tile->columns[i * ROWS + row] = value;
            square += (double)value * value;
            largest = fmaxf(largest, fabsf((float)value));
            pair = fmaxf(pair, i % 2 ? last + fabsf((float)value) : fabsf((float)value));
            last = fabsf((float)value);
        }
        tile->norm[row] = tile->reach[row] = round_up(sqrt(square), dim, EPSILON);
        tile->threshold[row] = row < count ? -INFINITY : INFINITY;
        tile->collected[row] = 0;
        tile->low[row] = (float)tile->threshold[row];
        float scale = byte_scale(largest, pair, tile->norm[row], dim), inverse = scale > 0 ? 1 / scale : 0;
        int sum = 0;
        square = 0;
        for (int i = 0; i < BYTE_CHANNELS * byte_groups(dim); i++) {
            float value = i < dim ? (float)tile->columns[i * ROWS + row] : 0;
            int rounded = (int)lrintf(value * inverse);
            double rest = (i < dim ? (double)tile->columns[i * ROWS + row] : 0) - (double)scale * rounded;
            int8_t *group = tile->bytes + (i / BYTE_CHANNELS * ROWS + row) * QUERY_BYTES;
            group[i % BYTE_CHANNELS] = group[(i % BYTE_CHANNELS + BYTE_CHANNELS) % QUERY_BYTES] = (int8_t)rounded;
            sum += rounded;
            square += rest * rest;
        }
        tile->error[row] = round_up(sqrt(square), dim, EPSILON);
        tile->inverse[row] = inverse;
        tile->offset[row] = BYTE_OFFSET * sum;
        if (row < count && scale != 0 && (scale < TINY || scale > HUGE_SCALE)) tile->exact = 1;
    }
    tile->stride = MAX(num_keys, SHORT_LIST);
    for (int i = 0; i < ROWS * tile->stride; i++) tile->score[i] = -INFINITY, tile->id[i] = -1;
}

/* The K best keys of each row of a tile: short lists are in order at any time, long ones in the end. */

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

#if defined(AVX2) && !defined(DOUBLE)
/* The last lane first, the others after it. */
INLINE __m256 rotated(__m256 a) { return _mm256_permutevar8x32_ps(a, _mm256_setr_epi32(7, 0, 1, 2, 3, 4, 5, 6)); }

/* What was there, `fresh` in the first place that is later than it, what was ahead of the places after that. */
INLINE __m256 moved(__m256 old, __m256 ahead, __m256 fresh, __m256 later, __m256 after) {
    return _mm256_blendv_ps(old, _mm256_blendv_ps(fresh, ahead, after), later);
}
#endif

/* Puts a score in order into a short list; of equal ones the first stays ahead. */
static inline void insert(Tile *tile, int row, real score, int32_t id, int num_keys) {
    real *scores = tile->score + row * tile->stride;
    int32_t *ids = tile->id + row * tile->stride;
#if defined(AVX512) && !defined(DOUBLE) /* without a branch on the place: it cannot be predicted */
    __m512 old = _mm512_loadu_ps(scores), fresh = _mm512_set1_ps(score);
    __m512i old_id = _mm512_loadu_si512(ids), shifted = _mm512_castps_si512(old);
    __mmask16 later = _mm512_cmp_ps_mask(old, fresh, _CMP_LT_OQ), here = later & -later;
    shifted = _mm512_alignr_epi32(shifted, shifted, 15);
    old = _mm512_mask_mov_ps(old, later, _mm512_castsi512_ps(shifted));
    old_id = _mm512_mask_mov_epi32(old_id, later, _mm512_alignr_epi32(old_id, old_id, 15));
    _mm512_storeu_ps(scores, _mm512_mask_mov_ps(old, here, fresh));
    _mm512_storeu_si512(ids, _mm512_mask_mov_epi32(old_id, here, _mm512_set1_epi32(id)));
#elif defined(AVX2) && !defined(DOUBLE) /* the same in two registers; nothing is ahead of the first place */
    __m256 front = _mm256_loadu_ps(scores), back = _mm256_loadu_ps(scores + 8), fresh = _mm256_set1_ps(score);
    __m256 before = _mm256_blend_ps(rotated(front), _mm256_set1_ps(INFINITY), 1);
    __m256 before_back = _mm256_blend_ps(rotated(back), rotated(front), 1);
    __m256 front_id = _mm256_loadu_ps((float *)ids), back_id = _mm256_loadu_ps((float *)ids + 8);
    __m256 fresh_id = _mm256_castsi256_ps(_mm256_set1_epi32(id));
    __m256 later = _mm256_cmp_ps(front, fresh, _CMP_LT_OQ), after = _mm256_cmp_ps(before, fresh, _CMP_LT_OQ);
    _mm256_storeu_ps(scores, moved(front, before, fresh, later, after));
    _mm256_storeu_ps((float *)ids, moved(front_id, rotated(front_id), fresh_id, later, after));
    later = _mm256_cmp_ps(back, fresh, _CMP_LT_OQ), after = _mm256_cmp_ps(before_back, fresh, _CMP_LT_OQ);
    _mm256_storeu_ps(scores + 8, moved(back, before_back, fresh, later, after));
    before_back = _mm256_blend_ps(rotated(back_id), rotated(front_id), 1);
    _mm256_storeu_ps((float *)ids + 8, moved(back_id, before_back, fresh_id, later, after));
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
