/* One block of memory cut into aligned arrays, and floats rounded to the safe side. */
#ifndef MEMORY_H
#define MEMORY_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define ALIGN 64 /* a cache line, and the widest vector */

static inline size_t aligned(size_t size) { return (size + ALIGN - 1) & ~(size_t)(ALIGN - 1); }

/* The next `size` bytes of a block; the block must have been counted with aligned(size) for each array. */
static inline void *carve(char **memory, size_t size) {
    char *start = (char *)aligned((size_t)*memory);
    *memory = start + size;
    return start;
}

/* A float above a norm (or the like) of `dim` channels, in spite of the rounding in its sum and in scores of `real`. */
static inline float round_up(double value, int dim, double epsilon) {
    return (float)(value * (1 + (dim + 4) * epsilon) * (1 + 0x1p-22));
}

#endif
