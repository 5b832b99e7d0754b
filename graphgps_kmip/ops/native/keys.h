/* Keys of one graph and head, packed for the scan.
 *
 * PANEL keys are packed together, in three forms: row by row (to score one key), column by column (to score a panel against
 * ROWS queries in registers) and, for the integer screen, as bytes with one scale for SUPER panels.
 */

#define PANEL 48 /* keys: their scores with ROWS queries fill the registers of AVX-512 (8 x 3 vectors), and those of others in parts */

#define SUPER 64 /* panels that a group of tiles passes over while they are in the cache */

/* Scales beyond these leave the range of float in the bound of the screen. */
#define TINY 1e-15f
#define HUGE_SCALE 1e15f

typedef struct {
    long count, panels; /* keys; panels, of which the last may be padded with zeros */
    int dim, groups;    /* channels; groups of BYTE_CHANNELS channels, the unit of the integer products */
    real *rows;            /* (panels, PANEL, dim) */
    real *columns;         /* (panels, dim, PANEL) */
    uint8_t *bytes;     /* (panels, groups, PANEL, BYTE_CHANNELS), BYTE_OFFSET + round(k / scale) */
    int32_t *id;        /* (panels, PANEL): number of the key in its graph */
    float *norm;        /* (panels): largest |k|, rounded up */
    float *reach;       /* (supers): largest |scale * byte|, rounded up; of SUPER panels with one scale */
    float *error;       /* (supers): largest |k - scale * byte|, rounded up */
    float *inverse;     /* (supers): 1 / scale */
} Keys;

/* A float above a norm (or the like) of `dim` channels, in spite of the rounding in its sum and in scores of `real`. */
static inline float round_up(double value, int dim, double epsilon) {
    return (float)(value * (1 + (dim + 4) * epsilon) * (1 + 0x1p-22));
}

static inline int byte_groups(int dim) { return (dim + BYTE_CHANNELS - 1) / BYTE_CHANNELS; }

static size_t keys_size(long count, int dim, int with_bytes) {
    size_t panels = (count + PANEL - 1) / PANEL;
    size_t panel_size = 2 * aligned((size_t)PANEL * dim * sizeof(real)) + aligned(PANEL * 4) + 4 * 4;
    if (with_bytes) panel_size += PANEL * BYTE_CHANNELS * (size_t)byte_groups(dim);
    return panels * panel_size + 8 * ALIGN;
}

static void keys_place(Keys *keys, long count, int dim, int with_bytes, char *memory) {
    keys->count = count;
    keys->panels = (count + PANEL - 1) / PANEL;
    keys->dim = dim;
    keys->groups = byte_groups(dim);
    size_t all = keys->panels * PANEL;
    keys->rows = carve(&memory, all * dim * sizeof(real));
    keys->columns = carve(&memory, all * dim * sizeof(real));
    keys->id = carve(&memory, all * 4);
    keys->norm = carve(&memory, keys->panels * 4);
    keys->reach = carve(&memory, keys->panels * 4); /* a few more than there are supers */
    keys->error = carve(&memory, keys->panels * 4);
    keys->inverse = carve(&memory, keys->panels * 4);
    keys->bytes = with_bytes ? carve(&memory, all * BYTE_CHANNELS * keys->groups) : NULL;
}

static inline int filled_lanes(const Keys *keys, long panel) {
    long rest = keys->count - panel * PANEL;
    return rest < PANEL ? (int)rest : PANEL;
}

/* Packs SUPER panels: their keys are k[order[0]], k[order[1]], ... (order NULL: in their own order). */
static void pack_super(Keys *keys, const real *k, const int32_t *order, long super) {
    int dim = keys->dim;
    long end = (super + 1) * SUPER < keys->panels ? (super + 1) * SUPER : keys->panels;
    float largest = 0, longest = 0;
    for (long panel = super * SUPER; panel < end; panel++) {
        int filled = filled_lanes(keys, panel);
        long first = panel * PANEL;
        real *rows = keys->rows + first * dim, *columns = keys->columns + first * dim;
        double norm = 0;
        for (int lane = 0; lane < PANEL; lane++) {
            long id = lane < filled ? (order ? order[first + lane] : first + lane) : 0;
            double square = 0;
            keys->id[first + lane] = (int32_t)id;
            for (int i = 0; i < dim; i++) {
                real value = lane < filled ? k[id * dim + i] : 0;
                rows[lane * dim + i] = columns[i * PANEL + lane] = value;
                square += (double)value * value;
                largest = fmaxf(largest, fabsf((float)value));
            }
            norm = fmax(norm, square);
        }
        keys->norm[panel] = round_up(sqrt(norm), dim, EPSILON);
        longest = fmaxf(longest, keys->norm[panel]);
    }
    if (!keys->bytes) return;
    float scale = byte_scale(largest, 0, longest, dim), inverse = scale > 0 ? 1 / scale : 0;
    double error = 0, reach = 0;
    for (long key = super * SUPER * PANEL; key < end * PANEL; key++) {
        const real *row = keys->rows + key * dim;
        uint8_t *bytes = keys->bytes + (key / PANEL * keys->groups * PANEL + key % PANEL) * BYTE_CHANNELS;
        double rest = 0, square = 0;
        for (int i = 0; i < BYTE_CHANNELS * keys->groups; i++) {
            int rounded = i < dim ? (int)lrintf((float)row[i] * inverse) : 0;
            double part = (double)scale * rounded;
            bytes[i / BYTE_CHANNELS * PANEL * BYTE_CHANNELS + i % BYTE_CHANNELS] = (uint8_t)(BYTE_OFFSET + rounded);
            rest += i < dim ? (row[i] - part) * (row[i] - part) : 0;
            square += part * part;
        }
        error = fmax(error, rest);
        reach = fmax(reach, square);
    }
    keys->error[super] = round_up(sqrt(error), dim, EPSILON);
    keys->reach[super] = round_up(sqrt(reach), dim, EPSILON);
    keys->inverse[super] = inverse;
}
