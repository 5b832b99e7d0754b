/* A tile: ROWS queries, their thresholds (the K-th best score so far) and what they have found. */

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
