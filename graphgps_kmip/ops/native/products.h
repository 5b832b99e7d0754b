/* Products of QUERIES rows with a tile of keys packed channel by channel (after simd.h). */
#ifndef PRODUCTS_H
#define PRODUCTS_H

#define QUERIES 8
#define KEYS 512 /* of a tile: 16 KiB of scores for QUERIES queries */
#define STEP (2 * LANES)
#define FEW_KEYS 64 /* up to which sums over lanes would take longer than what is summed */
#define GROUP 4  /* channels that are summed together; packed channels are a multiple of it */
#define SUMMED_ROWS (REGISTER_ROWS / 2) /* queries whose sums over GROUP channels fill the registers */

/* to[c, i] = from[i, c], with zeros up to a multiple of STEP and up to the packed channels. */
static inline void transpose(const real *from, long row, long count, int dim, int packed, real *to, long stride) {
    long width = (count + STEP - 1) / STEP * STEP;
    for (int c = 0; c < dim; c++)
        for (long i = 0; i < width; i += LANES) {
            long rest = count - i;
            vec some = rest <= 0 ? set1(0) : load_apart(from + i * row + c, row, rest < LANES ? (int)rest : LANES);
            store(to + c * stride + i, some);
        }
    for (int c = dim; c < packed; c++) memset(to + c * stride, 0, width * sizeof(real));
}

/* to[i, c] = from[i, c], with zeros after the channels. */
static inline void copy_rows(const real *from, long row, long count, int dim, int wide, real *to) {
    for (long i = 0; i < count; i++) {
        memcpy(to + i * wide, from + i * row, dim * sizeof(real));
        memset(to + i * wide + dim, 0, (wide - dim) * sizeof(real));
    }
}

/* Copies up to QUERIES rows, times a factor, with zeros where there are none. */
static inline void take_rows(const real *from, long row, long count, int dim, int packed, real factor, real *to) {
    memset(to, 0, (size_t)QUERIES * packed * sizeof(real));
    for (long i = 0; i < count; i++)
        for (int c = 0; c < dim; c++) to[i * packed + c] = factor * from[i * row + c];
}

/* score[r, j] = sum_c rows[r, c] keys[c, j] */
static inline void products(const real *rows, const real *keys, long stride, int packed, int width, real *score) {
    for (int j = 0; j < width; j += STEP)
        for (int first = 0; first < QUERIES; first += REGISTER_ROWS) {
            const real *row = rows + first * packed;
            vec sums[REGISTER_ROWS][2] = {0};
            for (int c = 0; c < packed; c += FACTORS) {
                factors some[REGISTER_ROWS];
                UNROLL for (int r = 0; r < REGISTER_ROWS; r++) some[r] = load_factors(row + r * packed + c);
                UNROLL for (int i = 0; i < FACTORS; i++) {
                    const real *at = keys + (c + i) * stride + j;
                    vec a = load(at), b = load(at + LANES);
                    UNROLL for (int r = 0; r < REGISTER_ROWS; r++) {
                        sums[r][0] = add_multiple(sums[r][0], some[r], i, a);
                        sums[r][1] = add_multiple(sums[r][1], some[r], i, b);
                    }
                }
            }
            UNROLL for (int r = 0; r < REGISTER_ROWS; r++) {
                store(score + (first + r) * KEYS + j, sums[r][0]);
                store(score + (first + r) * KEYS + j + LANES, sums[r][1]);
            }
        }
}

/* sum[r, c] += sum_j weight[r, j] keys[c, j] */
static inline void add_weighted(const real *weight, const real *keys, long stride, int packed, int width, real *sum) {
    for (int first = 0; first < QUERIES; first += SUMMED_ROWS)
        for (int c = 0; c < packed; c += GROUP) {
            vec sums[SUMMED_ROWS][GROUP] = {0};
            for (int j = 0; j < width; j += LANES) {
                vec w[SUMMED_ROWS];
                UNROLL for (int r = 0; r < SUMMED_ROWS; r++) w[r] = load(weight + (first + r) * KEYS + j);
                UNROLL for (int i = 0; i < GROUP; i++) {
                    vec key = load(keys + (c + i) * stride + j);
                    UNROLL for (int r = 0; r < SUMMED_ROWS; r++) sums[r][i] = fma_(w[r], key, sums[r][i]);
                }
            }
            for (int r = 0; r < SUMMED_ROWS; r++)
                for (int i = 0; i < GROUP; i++) sum[(first + r) * packed + c + i] += sum_lanes(sums[r][i]);
        }
}

/* The same with keys row by row, `readable` numbers of each, dim or a multiple of LANES: sum[r, c] += sum_j weight[r, j]
 * keys[j, c]. No sums over lanes; a tile is summed on its own, so that rounding does not grow with the number of keys. */
static inline void add_weighted_rows(const real *weight, const real *keys, long row, int readable, int count, int dim,
                                     int packed, real *sum) {
    for (int c = 0; c < dim; c += LANES) {
        vec sums[QUERIES] = {0};
        for (int j = 0; j < count; j++) {
            vec key = load_some(keys + j * row + c, readable - c);
            UNROLL for (int r = 0; r < QUERIES; r++) sums[r] = fma_(set1(weight[r * KEYS + j]), key, sums[r]);
        }
        UNROLL for (int r = 0; r < QUERIES; r++) {
            vec before = load_some(sum + r * packed + c, dim - c);
            store_some(sum + r * packed + c, before + sums[r], dim - c);
        }
    }
}

/* keys[c, j] += sum_r rows[r, c] weight[r, j] */
static inline void add_outer(const real *rows, const real *weight, long stride, int packed, int width, real *keys) {
    for (int j = 0; j < width; j += LANES) {
        vec w[QUERIES];
        UNROLL for (int r = 0; r < QUERIES; r++) w[r] = load(weight + r * KEYS + j);
        for (int c = 0; c < packed; c += FACTORS) {
            factors some[QUERIES];
            UNROLL for (int r = 0; r < QUERIES; r++) some[r] = load_factors(rows + r * packed + c);
            UNROLL for (int i = 0; i < FACTORS; i++) {
                real *at = keys + (c + i) * stride + j;
                vec sum = load(at);
                UNROLL for (int r = 0; r < QUERIES; r++) sum = add_multiple(sum, some[r], i, w[r]);
                store(at, sum);
            }
        }
    }
}

#endif
