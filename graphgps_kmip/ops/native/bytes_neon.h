/* Products of bytes on Arm, both signed: the matrix products of i8mm, else the dot products of Armv8.2 (for bytes.h). */
#define BYTE_OFFSET 0
#define BYTE_ROWS 8
#define BYTE_LANES 4
typedef int32x4_t sums; /* of 24 registers; 4 more hold queries */

INLINE int8x16_t load_signed(const void *p) { return vld1q_s8(p); }

#ifdef __ARM_FEATURE_MATMUL_INT8
/* A register of keys holds two of them, eight channels each, one of queries likewise; a register of sums has the four
 * products of two queries and two keys: query 0 with keys 0 and 1, then query 1. Each two rows of a block have six. */
#define QUERY_BYTES 8
#define BYTE_CHANNELS 8

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
        uint32x4_t found = {0};
        UNROLL for (int v = 0; v < 6; v++) found |= vcgezq_s32(sum[j + v / 3][v % 3]) & bits << 2 * v;
        uint32_t both = vaddvq_u32(found);
        left[j] = both & 0xffff;
        left[j + 1] = both >> 16;
    }
}

#else
#define BYTE_CHANNELS 4

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
        uint32x4_t found = {0};
        UNROLL for (int v = 0; v < 3; v++) found |= vcgezq_s32(sum[j][v]) & bits << 4 * v;
        left[j] = vaddvq_u32(found);
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
