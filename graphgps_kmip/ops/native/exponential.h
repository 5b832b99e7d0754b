/* exp of a vector, for arguments of at most 0, and sums of its lanes (after simd.h).
 *
 * 2^(n + f) with n the nearest integer: n comes out of the low bits of a number so large that nothing but integers are
 * left (its last bits), 2^f from its Taylor series for |f| <= 1/2.
 */
#ifndef EXPONENTIAL_H
#define EXPONENTIAL_H

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
    vec part = exp_((vec)((positive & (vec_bits)-x) | (~positive & (vec_bits)x))), one = set1(1);
    return (vec)((positive & (vec_bits)one) | (~positive & (vec_bits)part)) / (one + part);
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
