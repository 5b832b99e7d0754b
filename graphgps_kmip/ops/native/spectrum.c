/* The smallest eigenpairs of many sparse symmetric matrices (called by encoding/eigensolver.py): Lanczos runs on the
 * factorised matrix, and an exact count of what they missed.
 *
 * One run sees a repeated eigenvalue once. So the eigenvalues below the last one found are counted (the signs of the
 * pivots of a second factorisation); where some are missing, another run follows, orthogonal to what was found.
 */
#include <stdlib.h>

#include "lanczos.h"

#define WIDEST 0.25   /* of size^2 entries may lie inside the envelope: dense solvers are faster from there */
#define ITEM 8        /* bytes of everything that is allocated: doubles, integers, pointers */
#define RESIDUAL 1e-9 /* |A x - value x|, largest entry; relative to the largest entry of A where that is above 1 */

enum { FOUND, UNCONNECTED, WIDE, NOT_CONVERGED, MISSED, UNSTABLE, INACCURATE };

/* Sorts pairs by their values, ascending. */
static void sort(Lanczos *s, int64_t pairs, double *spare) {
    size_t bytes = s->matrix.size * sizeof(double);
    for (int64_t i = 1; i < pairs; i++) {
        double value = s->values[i];
        int64_t at = i;
        while (at > 0 && s->values[at - 1] > value) at--;
        if (at == i) continue;
        memcpy(spare, s->vectors + i * s->matrix.size, bytes);
        memmove(s->values + at + 1, s->values + at, (i - at) * sizeof(double));
        memmove(s->vectors + (at + 1) * s->matrix.size, s->vectors + at * s->matrix.size, (i - at) * bytes);
        s->values[at] = value;
        memcpy(s->vectors + at * s->matrix.size, spare, bytes);
    }
}

/* Says whether all pairs are eigenpairs of the matrix, to so many digits. */
static bool accurate(Lanczos *s, int64_t count) {
    int64_t size = s->matrix.size;
    double largest = 1, *image = s->basis;
    for (int64_t e = 0; e < s->matrix.start[size]; e++) largest = fmax(largest, fabs(s->matrix.entry[e]));
    for (int64_t i = 0; i < count; i++) {
        const double *vector = s->vectors + i * size;
        multiply(&s->matrix, vector, image);
        for (int64_t j = 0; j < size; j++)
            if (!(fabs(image[j] - s->values[i] * vector[j]) < RESIDUAL * largest)) return false;
    }
    return true;
}

/* Finds the `count` smallest eigenpairs: runs until as many lie below the last one as the matrix has. */
static int smallest(Lanczos *s, int64_t count, double shift) {
    int64_t inside = arrange(&s->matrix), found = 0, missing = count;
    if (inside < 0) return UNCONNECTED;
    if (inside > WIDEST * s->matrix.size * s->matrix.size) return WIDE;
    for (int64_t run = 0; run <= count; run++) {
        if (factorise(&s->matrix, shift) < 0) return UNSTABLE;
        if (!lanczos(s, found, missing)) return NOT_CONVERGED;
        sort(s, found + missing, s->basis);
        found = count;
        double last = s->values[count - 1], bound = last - 1e-12 - 1e-7 * fabs(last);
        int64_t below = factorise(&s->matrix, bound);
        if (below < 0) return UNSTABLE;
        for (int64_t i = 0; i < count; i++) below -= s->values[i] < bound;
        if (below <= 0) return accurate(s, count) ? FOUND : INACCURATE;
        missing = below < count ? below : count;
    }
    return MISSED;
}

/* Cuts one block of memory for matrices of up to `size` rows; returns it, NULL where it is not there. */
static void *allocate(Lanczos *s, int64_t size, int64_t entries, int64_t count) {
    Envelope *a = &s->matrix;
    struct {
        void *pointer;
        int64_t items;
    } parts[] = {
        {&a->order, size}, {&a->place, size}, {&a->level, size}, {&a->first, size}, {&a->start, size + 1},
        {&a->at, entries}, {&a->entry, entries}, {&a->lower, size}, {&a->pivot, size},
        {&a->inside, (int64_t)(WIDEST * size * size) + 1}, {&s->basis, (count + s->most + 1) * size},
        {&s->alpha, s->most}, {&s->beta, s->most}, {&s->theta, s->most}, {&s->off, s->most}, {&s->ranks, s->most},
        {&s->rotation, s->most * s->most}, {&s->values, 2 * count}, {&s->vectors, 2 * count * size},
    };
    int64_t total = 0, num_parts = sizeof parts / sizeof *parts;
    for (int64_t i = 0; i < num_parts; i++) total += parts[i].items;
    char *memory = malloc(total * ITEM), *at = memory;
    for (int64_t i = 0; memory != NULL && i < num_parts; i++) {
        memcpy(parts[i].pointer, &at, sizeof at);
        at += parts[i].items * ITEM;
    }
    return memory;
}

/* Finds the `count` smallest eigenpairs of each of many matrices, of more than `count` rows.
 *
 * begin, size (matrices): the rows of each; indptr, column, value: all rows, columns counted from the first row of
 * their own matrix, the diagonal among them. most: vectors of one Lanczos run. shift: below all eigenvalues, times
 * 1 / size^2. values (matrices, count), vectors (rows, count); status (matrices): where it is not FOUND, the former two
 * are not written. Returns non-zero where memory is short.
 */
int smallest_eigenpairs(int64_t matrices, const int64_t *begin, const int64_t *size, const int64_t *indptr,
                        const int64_t *column, const double *value, int64_t count, int64_t most, double shift,
                        double *values, double *vectors, int64_t *status) {
    Lanczos s = {.most = most, .matrix = {.column = column, .value = value}};
    int64_t rows = 0, entries = 0;
    for (int64_t m = 0; m < matrices; m++) {
        int64_t own = indptr[begin[m] + size[m]] - indptr[begin[m]];
        if (size[m] > rows) rows = size[m];
        if (own > entries) entries = own;
    }
    void *memory = allocate(&s, rows, entries, count);
    if (memory == NULL) return 1;
    for (int64_t m = 0; m < matrices; m++) {
        s.matrix.size = size[m];
        s.matrix.indptr = indptr + begin[m];
        s.random = 0;
        status[m] = smallest(&s, count, shift / ((double)size[m] * size[m]));
        if (status[m] != FOUND) continue;
        memcpy(values + m * count, s.values, count * sizeof(double));
        for (int64_t i = 0; i < size[m]; i++)
            for (int64_t k = 0; k < count; k++)
                vectors[(begin[m] + s.matrix.order[i]) * count + k] = s.vectors[k * size[m] + i];
    }
    free(memory);
    return 0;
}
