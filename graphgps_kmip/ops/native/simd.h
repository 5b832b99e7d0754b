/* The few vector operations of the kernels, for AVX-512, AVX2, NEON and (by the compiler's own vectors) any other CPU.
 *
 * A vector `vec` has LANES elements of type `real` (float, or double with -DDOUBLE); bits() of above(a, b) is a bit mask
 * of the lanes with a > b. REGISTER_ROWS x 3 vectors of sums, 3 of keys and 1 of a query fill the registers.
 */
#ifndef SIMD_H
#define SIMD_H

#include <math.h>
#include <stdint.h>

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
#define INLINE static inline __attribute__((always_inline))

#ifdef DOUBLE
typedef double real;
#define EPSILON 0x1p-53
#define EXP exp
#else
typedef float real;
#define EPSILON 0x1p-24
#define EXP expf
#endif

#if !defined(__FMA__) && !defined(__ARM_FEATURE_FMA)
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#elif defined(DOUBLE)
#define MULTIPLY_ADD __builtin_fma
#else
#define MULTIPLY_ADD __builtin_fmaf
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <immintrin.h>
#define AVX512
#define REGISTER_ROWS 8
#ifdef __AVX512VNNI__
#define PATH "avx512vnni"
#else
#define PATH "avx512"
#endif
#ifdef DOUBLE
typedef __m512d vec;
#define OF(name) _mm512_##name##_pd
#define GREATER _mm512_cmp_pd_mask
#else
typedef __m512 vec;
#define OF(name) _mm512_##name##_ps
#define GREATER _mm512_cmp_ps_mask
#endif
typedef uint32_t comparison;
INLINE comparison above(vec a, vec b) { return GREATER(a, b, _CMP_GT_OQ); }
INLINE comparison either(comparison a, comparison b) { return a | b; }
INLINE uint32_t bits(comparison a) { return a; }

#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define AVX2
#define REGISTER_ROWS 4
#ifdef __AVXVNNI__
#define PATH "avxvnni"
#else
#define PATH "avx2"
#endif
#ifdef DOUBLE
typedef __m256d vec;
#define OF(name) _mm256_##name##_pd
#else
typedef __m256 vec;
#define OF(name) _mm256_##name##_ps
#endif
typedef vec comparison;
INLINE comparison above(vec a, vec b) { return OF(cmp)(a, b, _CMP_GT_OQ); }
INLINE comparison either(comparison a, comparison b) { return OF(or)(a, b); }
INLINE uint32_t bits(comparison a) { return (uint32_t)OF(movemask)(a); }

#else /* 16 bytes are what SSE2, NEON, AltiVec and RISC-V can do; the compiler emulates them elsewhere */
#if defined(__aarch64__) && defined(__ARM_NEON)
#include <arm_neon.h>
#define NEON /* 32 registers */
#define REGISTER_ROWS 8
#ifdef __ARM_FEATURE_MATMUL_INT8
#define PATH "i8mm"
#elif defined(__ARM_FEATURE_DOTPROD)
#define PATH "dotprod"
#else
#define PATH "neon"
#endif
#else
#define PATH "portable"
#define REGISTER_ROWS 4
#endif
typedef real vec __attribute__((vector_size(16)));
#ifdef DOUBLE
typedef int64_t lanes __attribute__((vector_size(16)));
#else
typedef int32_t lanes __attribute__((vector_size(16)));
#endif
INLINE vec set1(real x) { vec a; for (unsigned i = 0; i < sizeof a / sizeof x; i++) a[i] = x; return a; }
INLINE vec load(const real *p) { vec a; __builtin_memcpy(&a, p, sizeof a); return a; }
INLINE void store(real *p, vec a) { __builtin_memcpy(p, &a, sizeof a); }
INLINE vec fma_(vec a, vec b, vec c) { return a * b + c; }
typedef lanes comparison;
INLINE comparison above(vec a, vec b) { return a > b; }
INLINE comparison either(comparison a, comparison b) { return a | b; }
#if !defined(NEON)
INLINE vec max_(vec a, vec b) { lanes m = a > b; return (vec)((m & (lanes)a) | (~m & (lanes)b)); }
INLINE uint32_t bits(comparison a) {
    uint32_t mask = 0;
    for (unsigned i = 0; i < sizeof a / sizeof(real); i++) mask |= (uint32_t)(a[i] & 1) << i;
    return mask;
}
#elif defined(DOUBLE)
INLINE vec max_(vec a, vec b) { return (vec)vmaxq_f64((float64x2_t)a, (float64x2_t)b); }
INLINE vec max_of_each(const vec *a) { return (vec)vpmaxq_f64((float64x2_t)a[0], (float64x2_t)a[1]); }
INLINE uint32_t bits(comparison a) { return (uint32_t)vaddvq_s64((int64x2_t)(a & (lanes){1, 2})); }
#else
INLINE vec max_(vec a, vec b) { return (vec)vmaxq_f32((float32x4_t)a, (float32x4_t)b); }
INLINE vec max_of_each(const vec *a) { /* a lane for each of LANES vectors */
    float32x4_t front = vpmaxq_f32((float32x4_t)a[0], (float32x4_t)a[1]);
    return (vec)vpmaxq_f32(front, vpmaxq_f32((float32x4_t)a[2], (float32x4_t)a[3]));
}
INLINE uint32_t bits(comparison a) { return (uint32_t)vaddvq_s32((int32x4_t)(a & (lanes){1, 2, 4, 8})); }
#endif
#endif

#if defined(AVX512) || defined(AVX2)
INLINE vec set1(real x) { return OF(set1)(x); }
INLINE vec load(const real *p) { return OF(loadu)(p); }
INLINE void store(real *p, vec a) { OF(storeu)(p, a); }
INLINE vec fma_(vec a, vec b, vec c) { return OF(fmadd)(a, b, c); }
INLINE vec max_(vec a, vec b) { return OF(max)(a, b); }
#endif
#define LANES ((int)(sizeof(vec) / sizeof(real)))

/* FACTORS consecutive numbers, each a factor of whole vectors: NEON multiplies by one lane of a register, the
 * others load a number into all lanes. */
#ifdef NEON
#define FACTORS LANES
typedef vec factors;
INLINE factors load_factors(const real *p) { return load(p); }
#else
#define FACTORS 1
typedef const real *factors;
INLINE factors load_factors(const real *p) { return p; }
#endif
INLINE vec add_multiple(vec sum, factors some, int which, vec a) { return fma_(set1(some[which]), a, sum); }

/* Up to LANES numbers; zeros after them. */
#if defined(OF) && defined(__AVX512F__)
INLINE vec load_some(const real *p, int count) {
    return count >= LANES ? load(p) : OF(maskz_loadu)((1u << count) - 1, p);
}

INLINE void store_some(real *p, vec a, int count) {
    if (count >= LANES) store(p, a);
    else OF(mask_storeu)(p, (1u << count) - 1, a);
}
#elif defined(AVX2)
/* A window of this table, `count` of whose lanes are set: copies of so few bytes take ten times as long. */
static const int32_t FIRST[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
INLINE __m256i first_set(int count) { return _mm256_loadu_si256((const __m256i *)(FIRST + 8 - 8 / LANES * count)); }

INLINE vec load_some(const real *p, int count) {
    return count >= LANES ? load(p) : OF(maskload)(p, first_set(count));
}

INLINE void store_some(real *p, vec a, int count) {
    if (count >= LANES) store(p, a);
    else OF(maskstore)(p, first_set(count), a);
}
#else
INLINE vec load_some(const real *p, int count) {
    real all[LANES] = {0};
    if (count >= LANES) return load(p);
    __builtin_memcpy(all, p, count * sizeof(real));
    return load(all);
}

INLINE void store_some(real *p, vec a, int count) {
    real all[LANES];
    if (count >= LANES) {
        store(p, a);
        return;
    }
    store(all, a);
    __builtin_memcpy(p, all, count * sizeof(real));
}
#endif

/* Up to LANES numbers, `step` apart; zeros after them. */
INLINE vec load_apart(const real *p, long step, int count) {
#if defined(AVX512) && !defined(DOUBLE)
    if (step < 1L << 26) { /* places are 32-bit numbers */
        const __m512i number = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        __mmask16 some = count >= LANES ? 0xffff : (__mmask16)((1u << count) - 1);
        __m512i place = _mm512_mullo_epi32(_mm512_set1_epi32((int)step), number);
        return _mm512_mask_i32gather_ps(set1(0), some, place, p, sizeof(real));
    }
#endif
    real all[LANES] = {0};
    for (int i = 0; i < count && i < LANES; i++) all[i] = p[i * step];
    return load(all);
}

/* The first `count` lanes of one vector, of at least one lane, and the others of another one. */
INLINE vec first_lanes(vec a, int count, vec rest) {
#if defined(AVX512)
    return count >= LANES ? a : OF(mask_mov)(rest, (1u << count) - 1, a);
#else
    for (int i = count; i < LANES; i++) a[i] = rest[i];
    return a;
#endif
}

/* One number for each of ROWS queries, in the compiler's own vectors. */
#define ROWS 8
typedef real rows __attribute__((vector_size(ROWS * sizeof(real))));
#ifdef DOUBLE
typedef int64_t row_bits __attribute__((vector_size(ROWS * sizeof(real))));
#else
typedef int32_t row_bits __attribute__((vector_size(ROWS * sizeof(real))));
#endif
INLINE rows load_rows(const real *p) { rows a; __builtin_memcpy(&a, p, sizeof a); return a; }
INLINE rows choose(row_bits condition, rows a, rows b) {
    return (rows)((condition & (row_bits)a) | (~condition & (row_bits)b));
}
INLINE rows absolute(rows a) { return choose(a < 0, -a, a); }
INLINE int any_above(rows a, rows b) {
#if defined(__AVX512VL__) && !defined(DOUBLE)
    return _mm256_cmp_ps_mask((__m256)a, (__m256)b, _CMP_GT_OQ) != 0;
#elif defined(__AVX512VL__)
    return _mm512_cmp_pd_mask((__m512d)a, (__m512d)b, _CMP_GT_OQ) != 0;
#else
    uint64_t parts[sizeof(rows) / 8], any = 0;
    row_bits above = a > b;
    __builtin_memcpy(parts, &above, sizeof above);
    for (unsigned i = 0; i < sizeof(rows) / 8; i++) any |= parts[i];
    return any != 0;
#endif
}

/* exp of a vector, for arguments of at most 0: 2^(n + f) with n the nearest integer, which is the low bits of a number so
 * large that nothing but integers are left, and 2^f from its Taylor series for |f| <= 1/2. */
#ifdef DOUBLE
typedef int64_t vec_bits __attribute__((vector_size(sizeof(vec))));
typedef uint64_t vec_words __attribute__((vector_size(sizeof(vec)))); /* sums of these wrap, and signed ones may not */
#define TERMS 14
#if defined(AVX512)
#define REDUCE_ADD _mm512_reduce_add_pd
#define REDUCE_MAX _mm512_reduce_max_pd
#elif defined(NEON)
#define REDUCE_ADD(a) vaddvq_f64((float64x2_t)(a))
#endif
#define INTEGERS 0x1.8p52
#define MANTISSA 52
#define LOWEST -708.0
#else
typedef int32_t vec_bits __attribute__((vector_size(sizeof(vec))));
typedef uint32_t vec_words __attribute__((vector_size(sizeof(vec))));
#define TERMS 8
#if defined(AVX512)
#define REDUCE_ADD _mm512_reduce_add_ps
#define REDUCE_MAX _mm512_reduce_max_ps
#elif defined(NEON)
#define REDUCE_ADD(a) vaddvq_f32((float32x4_t)(a))
#endif
#define INTEGERS 0x1.8p23f
#define MANTISSA 23
#define LOWEST -87.0f
#endif

/* (log 2)^i / i! */
static const double TAYLOR[14] = {
    1.0, 0.6931471805599453, 0.24022650695910072, 0.05550410866482158, 0.009618129107628477, 0.0013333558146428443,
    0.0001540353039338161, 1.5252733804059841e-05, 1.321548679014431e-06, 1.0178086009239699e-07,
    7.054911620801123e-09, 4.44553827187081e-10, 2.5678435993488202e-11, 1.3691488853904128e-12};

/* exp(x) for x <= 0, and NaN for NaN; what would be below the least normal number is about that number. */
INLINE vec exp_(vec x) {
    x = max_(set1((real)LOWEST), x); /* of two that do not compare, max_ takes the second one */
    vec shifted = fma_(x, set1((real)1.4426950408889634), set1((real)INTEGERS));
    vec f = fma_(x, set1((real)1.4426950408889634), set1((real)INTEGERS) - shifted);
    vec power = set1((real)TAYLOR[TERMS - 1]);
    for (int i = TERMS - 2; i >= 0; i--) power = fma_(power, f, set1((real)TAYLOR[i]));
    return (vec)((vec_words)power + ((vec_words)shifted << MANTISSA));
}

/* 1 / (1 + exp(-x)), and NaN for NaN */
INLINE vec sigmoid(vec x) {
    vec_bits positive = x >= set1(0);
    vec part = exp_((vec)((positive & (vec_bits)-x) | (~positive & (vec_bits)x))), ones = set1(1);
    return (vec)((positive & (vec_bits)ones) | (~positive & (vec_bits)part)) / (ones + part);
}

INLINE real sum_lanes(vec a) {
#ifdef REDUCE_ADD
    return REDUCE_ADD(a);
#else
    real sum = 0;
    for (int i = 0; i < LANES; i++) sum += a[i];
    return sum;
#endif
}

INLINE real max_lanes(vec a) {
#ifdef REDUCE_MAX
    return REDUCE_MAX(a);
#else
    real largest = a[0];
    for (int i = 1; i < LANES; i++) largest = a[i] > largest ? a[i] : largest;
    return largest;
#endif
}

#endif
