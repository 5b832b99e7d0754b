/* Products of bytes, for the integer screen (after simd.h).
 *
 * A block is BYTE_ROWS queries and 3 * BYTE_LANES keys, whose integer sums stay in registers. Each product adds
 * BYTE_CHANNELS channels: eight with the matrix products of Arm, four with its dot products and with VNNI, else two in
 * sums of 16 bits. These hold a sum because |b| |c| < 2^14 for bytes b of a query and c of a key (see byte_scale); what
 * makes keys unsigned wraps around and back. vpmaddubsw does not saturate: |b1| + |b2| <= 128.
 */
#if defined(AVX512) && defined(__AVX512VNNI__)
#define BYTE_CHANNELS 4
#define BYTE_ROWS 8 /* x 3 vectors of sums, in registers */
#define BYTE_LANES 16
typedef __m512i sums;
#elif defined(__AVXVNNI__) && defined(AVX2)
#define BYTE_CHANNELS 4
#define BYTE_ROWS 4
#define BYTE_LANES 8
typedef __m256i sums;
#elif defined(AVX512) || defined(AVX2)
#define BYTE_CHANNELS 2
#define BYTE_ROWS REGISTER_ROWS
#define BYTE_LANES 16
typedef __m256i sums;
#elif defined(NEON) && (defined(__ARM_FEATURE_DOTPROD) || defined(__ARM_FEATURE_MATMUL_INT8))
#define BYTE_OFFSET 0 /* both signed */
#define BYTE_ROWS 8
#define BYTE_LANES 4
typedef int32x4_t sums; /* of 24 registers; 4 more hold queries */
#ifdef __ARM_FEATURE_MATMUL_INT8
#define QUERY_BYTES 8
#define BYTE_CHANNELS 8
#else
#define BYTE_CHANNELS 4
#endif
#else
#define BYTE_CHANNELS 4 /* of bytes that nothing reads */
#endif

#ifndef QUERY_BYTES
#define QUERY_BYTES 4 /* of a group of channels */
#endif
#ifndef BYTE_OFFSET
#define BYTE_OFFSET 128 /* of keys: x86 multiplies unsigned bytes with signed ones */
#endif

#ifdef BYTE_ROWS
#define BYTES /* the integer screen can be compiled */
#endif

#if BYTE_CHANNELS == 2
#define MOST_BYTES_DIM 4096 /* beyond it rounding would take more than 32 of the 127 units */
#define LARGEST_SUM 16129.0f /* 127^2 >= |b| |c| */
#else
#define MOST_BYTES_DIM (1 << 14) /* 255 * 127 * dim, and the threshold beside it, stay within 31 bits */
#define LARGEST_SUM 1e9f
#endif

/* What one unit of a byte of a row stands for: `largest` and `pair` are its largest |x_i| and |x_2i| + |x_2i+1|. For
 * sums of 16 bits: rounding adds at most sqrt(dim) / 2 units to a norm, and 1 to a pair. */
static inline float byte_scale(float largest, float pair, float norm, int dim) {
#if BYTE_CHANNELS == 2
    return fmaxf(pair / 126.9f, norm / (126.9f - 0.5f * sqrtf((float)dim)));
#else
    return largest / 127;
#endif
}

#if defined(BYTES) && !defined(NEON)
#if BYTE_LANES * BYTE_CHANNELS == 64
INLINE sums load_bytes(const uint8_t *p) { return _mm512_loadu_si512(p); }
INLINE sums all3(sums a, sums b, sums c) { return _mm512_ternarylogic_epi32(a, b, c, 0x80); }
INLINE uint32_t negative(sums a) { return _mm512_movepi32_mask(a); }

/* Assembly, since GCC 12 moves the sums through memory when they are intrinsics, three times as slow: one number in all
 * lanes, and sum + four products of bytes in each lane. */
INLINE sums spread(const int32_t *number) {
    sums all;
    __asm__("vpbroadcastd %1, %0" : "=v"(all) : "m"(*number));
    return all;
}
INLINE sums add_products(sums sum, sums k, const int32_t *q) {
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(k), "m"(*q));
    return sum;
}

#else
INLINE sums load_bytes(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE sums all3(sums a, sums b, sums c) { return _mm256_and_si256(_mm256_and_si256(a, b), c); }
INLINE sums spread(const int32_t *number) { return _mm256_set1_epi32(*number); }

#if BYTE_CHANNELS == 4
INLINE uint32_t negative(sums a) { return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(a)); }
INLINE sums add_products(sums sum, sums k, const int32_t *q) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(k), "x"(spread(q)));
    return sum;
}
#else
INLINE uint32_t negative(sums a) {
    __m128i packed = _mm_packs_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    return (uint32_t)_mm_movemask_epi8(packed);
}
INLINE sums add_products(sums sum, sums k, const int32_t *q) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(k, spread(q)));
}
#endif
#endif

/* All sums of a block start from what belongs to its query. */
INLINE void start_sums(sums sum[BYTE_ROWS][3], const int32_t *start) {
    UNROLL for (int j = 0; j < BYTE_ROWS; j++)
        sum[j][0] = spread(start + j), sum[j][1] = spread(start + j), sum[j][2] = spread(start + j);
}

/* Adds the products of one group of channels. */
INLINE void add_group(sums sum[BYTE_ROWS][3], const uint8_t *k, const int8_t *bytes) {
    const int32_t *q = (const int32_t *)bytes;
    sums k0 = load_bytes(k), k1 = load_bytes(k + sizeof(sums)), k2 = load_bytes(k + 2 * sizeof(sums));
    UNROLL for (int j = 0; j < BYTE_ROWS; j++) {
        sum[j][0] = add_products(sum[j][0], k0, q + j);
        sum[j][1] = add_products(sum[j][1], k1, q + j);
        sum[j][2] = add_products(sum[j][2], k2, q + j);
    }
}

#define ALL_LANES ((1u << BYTE_LANES) - 1)

/* Whether no sum has reached 0: the sign bit stays where all are negative. */
INLINE int all_negative(sums sum[BYTE_ROWS][3]) {
    sums row[BYTE_ROWS], all;
    UNROLL for (int j = 0; j < BYTE_ROWS; j++) row[j] = all3(sum[j][0], sum[j][1], sum[j][2]);
    all = all3(row[0], row[1], all3(row[2], row[3], row[3]));
    if (BYTE_ROWS == 8) all = all3(all, all3(row[4], row[5], row[6]), row[7]);
    return negative(all) == ALL_LANES;
}

/* A bit for each key whose sum has reached 0, for each query. */
INLINE void find_left(sums sum[BYTE_ROWS][3], uint64_t *left) {
    UNROLL for (int j = 0; j < BYTE_ROWS; j++) {
        left[j] = 0;
        if (negative(all3(sum[j][0], sum[j][1], sum[j][2])) != ALL_LANES)
            left[j] = ~((uint64_t)negative(sum[j][0]) | (uint64_t)negative(sum[j][1]) << BYTE_LANES |
                        (uint64_t)negative(sum[j][2]) << 2 * BYTE_LANES);
    }
}

#elif defined(BYTES)
INLINE int8x16_t load_signed(const void *p) { return vld1q_s8(p); }

#ifdef __ARM_FEATURE_MATMUL_INT8
/* A register of keys holds two of them, eight channels each, one of queries likewise; a register of sums has the four
 * products of two queries and two keys: query 0 with keys 0 and 1, then query 1. Each two rows of a block have six. */
INLINE void start_sums(sums sum[BYTE_ROWS][3], const int32_t *start) {
    UNROLL for (int j = 0; j < BYTE_ROWS; j += 4) {
        sums four = vld1q_s32(start + j), front = vzip1q_s32(four, four), back = vzip2q_s32(four, four);
        UNROLL for (int v = 0; v < 6; v++) sum[j + v / 3][v % 3] = front, sum[j + 2 + v / 3][v % 3] = back;
    }
}

INLINE void add_group(sums sum[BYTE_ROWS][3], const uint8_t *k, const int8_t *q) {
    UNROLL for (int v = 0; v < 6; v++) {
        int8x16_t keys = load_signed(k + 16 * v);
        __asm__ volatile("" : "+w"(keys)); /* or GCC loads all six ahead, and moves sums to memory for them */
        UNROLL for (int j = 0; j < BYTE_ROWS; j += 2)
            sum[j + v / 3][v % 3] = vmmlaq_s32(sum[j + v / 3][v % 3], load_signed(q + QUERY_BYTES * j), keys);
    }
}

INLINE void find_left(sums sum[BYTE_ROWS][3], uint64_t *left) {
    const uint32x4_t bits = {1, 2, 1 << 16, 2 << 16}; /* 12 bits of a query, 16 bits on those of the next */
    UNROLL for (int j = 0; j < BYTE_ROWS; j += 2) {
        uint32x4_t reached = {0};
        UNROLL for (int v = 0; v < 6; v++) reached |= vcgezq_s32(sum[j + v / 3][v % 3]) & bits << 2 * v;
        uint32_t both = vaddvq_u32(reached);
        left[j] = both & 0xffff;
        left[j + 1] = both >> 16;
    }
}

#else
INLINE void start_sums(sums sum[BYTE_ROWS][3], const int32_t *start) {
    UNROLL for (int j = 0; j < BYTE_ROWS; j++) {
        sums four = vld1q_s32(start + j / 4 * 4);
        sum[j][0] = sum[j][1] = sum[j][2] = vdupq_n_s32(four[j % 4]);
    }
}

/* One query with 12 keys; the lane that its four bytes are in must be a literal number. */
#define ADD_QUERY(j, q, lane)                               \
    sum[j][0] = vdotq_laneq_s32(sum[j][0], k0, q, lane);    \
    sum[j][1] = vdotq_laneq_s32(sum[j][1], k1, q, lane);    \
    sum[j][2] = vdotq_laneq_s32(sum[j][2], k2, q, lane)

INLINE void add_group(sums sum[BYTE_ROWS][3], const uint8_t *k, const int8_t *q) {
    int8x16_t k0 = load_signed(k), k1 = load_signed(k + 16), k2 = load_signed(k + 32);
    int8x16_t front = load_signed(q), back = load_signed(q + 16);
    ADD_QUERY(0, front, 0);
    ADD_QUERY(1, front, 1);
    ADD_QUERY(2, front, 2);
    ADD_QUERY(3, front, 3);
    ADD_QUERY(4, back, 0);
    ADD_QUERY(5, back, 1);
    ADD_QUERY(6, back, 2);
    ADD_QUERY(7, back, 3);
}

INLINE void find_left(sums sum[BYTE_ROWS][3], uint64_t *left) {
    const uint32x4_t bits = {1, 2, 4, 8};
    UNROLL for (int j = 0; j < BYTE_ROWS; j++) {
        uint32x4_t reached = {0};
        UNROLL for (int v = 0; v < 3; v++) reached |= vcgezq_s32(sum[j][v]) & bits << 4 * v;
        left[j] = vaddvq_u32(reached);
    }
}
#endif

/* Whether no sum has reached 0: the sign bit stays where all are negative. */
INLINE int all_negative(sums sum[BYTE_ROWS][3]) {
    sums row[BYTE_ROWS];
    UNROLL for (int j = 0; j < BYTE_ROWS; j++) {
        row[j] = sum[j][0] & sum[j][1] & sum[j][2];
        __asm__("" : "+w"(row[j])); /* or GCC makes one chain of all, in which each waits for the one before */
    }
    return vmaxvq_s32(row[0] & row[1] & row[2] & row[3] & row[4] & row[5] & row[6] & row[7]) < 0;
}
#endif
