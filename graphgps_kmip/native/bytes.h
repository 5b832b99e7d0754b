/* Products of bytes, for the integer screen: unsigned ones of keys with signed ones of queries (after simd.h).
 *
 * A lane of a `sums` vector is one key, and adds BYTE_CHANNELS channels at a time: four in 32 bits where the CPU has
 * VNNI, else two in 16 bits. 16 bits hold a sum because |b| |c| < 2^14 for bytes b of a query and c of a key (see
 * byte_scale); the 128 that makes keys unsigned wraps around and back. vpmaddubsw does not saturate: |b1| + |b2| <= 128.
 */
#if defined(__AVX512VNNI__) && REGISTER_ROWS == 8
#define BYTE_CHANNELS 4
#define BYTE_ROWS 8 /* x 3 vectors of sums, in registers */
#define BYTE_LANES 16
typedef __m512i sums;
#elif defined(__AVXVNNI__) && defined(OF)
#define BYTE_CHANNELS 4
#define BYTE_ROWS 4
#define BYTE_LANES 8
typedef __m256i sums;
#elif defined(OF)
#define BYTE_CHANNELS 2
#define BYTE_ROWS REGISTER_ROWS
#define BYTE_LANES 16
typedef __m256i sums;
#else
#define BYTE_CHANNELS 4 /* of bytes that nothing reads */
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

#ifdef BYTES

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

#endif
