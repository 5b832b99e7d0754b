/* Lanczos runs on the inverse of a shifted sparse matrix, with full reorthogonalisation: the largest eigenvalues of the
 * inverse are those next to the shift, and they come first (Ericsson and Ruhe 1980).
 */
#ifndef LANCZOS_H
#define LANCZOS_H

#include "envelope.h"
#include "tridiagonal.h"

#define CHECK_EVERY 4   /* steps between two looks at what has converged */
#define TOLERANCE 1e-12 /* of eigenvalues of the inverse, relative */

typedef struct {
    Envelope matrix;
    int64_t most;             /* vectors of a run */
    double *basis;            /* (count + most + 1, size): what was found before, then the Lanczos vectors */
    double *alpha, *beta;     /* (most): the tridiagonal matrix of the inverse */
    double *theta, *off;      /* (most): a copy that is diagonalised */
    int64_t *ranks;           /* (most): theta by descending size */
    double *rotation;         /* (most, most) */
    double *values, *vectors; /* (2 count), (2 count, size): eigenpairs */
    uint64_t random;
} Lanczos;

/* Fills a vector with numbers between -1 and 1, the same ones in each run (SplitMix64). */
static void draw(Lanczos *s, double *x) {
    for (int64_t i = 0; i < s->matrix.size; i++) {
        uint64_t bits = s->random += 0x9e3779b97f4a7c15;
        bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;
        bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
        x[i] = (double)(int64_t)(bits ^ bits >> 31) * 0x1p-63;
    }
}

/* Makes x orthogonal to the first `rows` vectors of the basis, twice or until its length stays; returns the length, and
 * in *last what was removed along the last of these vectors. */
static double orthogonalise(const Lanczos *s, double *x, int64_t rows, double *last) {
    int64_t size = s->matrix.size;
    double before, after = sqrt(dot(x, x, size));
    int round = 0;
    *last = 0;
    do {
        before = after;
        for (int64_t r = 0; r < rows; r++) {
            const double *vector = s->basis + r * size;
            double along = dot(vector, x, size);
            add(x, -along, vector, size);
            if (r == rows - 1) *last += along;
        }
        after = sqrt(dot(x, x, size));
    } while (++round < 2 || (after < 0.7 * before && round < 5));
    return after;
}

/* Diagonalises the first `steps` rows of the tridiagonal matrix and orders the eigenvalues by descending size. */
static bool ritz(Lanczos *s, int64_t steps, int64_t width) {
    memcpy(s->theta, s->alpha, steps * sizeof(double));
    memcpy(s->off, s->beta, steps * sizeof(double));
    if (!diagonalise(s->theta, s->off, steps, s->rotation, width)) return false;
    for (int64_t i = 0; i < steps; i++) {
        int64_t at = i;
        for (; at > 0 && s->theta[s->ranks[at - 1]] < s->theta[i]; at--) s->ranks[at] = s->ranks[at - 1];
        s->ranks[at] = i;
    }
    return true;
}

/* Says whether the `wanted` largest eigenvalues have converged: the last entries of their eigenvectors tell. */
static bool converged(Lanczos *s, int64_t steps, int64_t wanted) {
    memset(s->rotation, 0, steps * sizeof(double));
    s->rotation[steps - 1] = 1;
    if (!ritz(s, steps, 1)) return false;
    for (int64_t i = 0; i < wanted; i++) {
        int64_t at = s->ranks[i];
        if (fabs(s->beta[steps - 1] * s->rotation[at]) > TOLERANCE * s->theta[at]) return false;
    }
    return true;
}

/* Finds `wanted` eigenpairs orthogonal to the `locked` ones found before and puts them behind these; the matrix is
 * factorised. Returns false where they do not converge. */
static bool lanczos(Lanczos *s, int64_t locked, int64_t wanted) {
    int64_t size = s->matrix.size, most = s->most < size - locked ? s->most : size - locked, steps = 0;
    memcpy(s->basis, s->vectors, locked * size * sizeof(double));
    double *start = s->basis + locked * size, ignored;
    draw(s, start);
    scale(start, 1 / orthogonalise(s, start, locked, &ignored), size);
    for (bool done = false; !done;) {
        double *next = start + (steps + 1) * size;
        memcpy(next, next - size, size * sizeof(double));
        solve(&s->matrix, next);
        double length = orthogonalise(s, next, locked + steps + 1, &s->alpha[steps]);
        s->beta[steps++] = length;
        if (steps == size - locked) s->beta[steps - 1] = 0; /* the whole space: nothing is left but rounding */
        if (steps == most || (steps >= 2 * wanted && steps % CHECK_EVERY == 0)) done = converged(s, steps, wanted);
        if (!done && steps == most) return false;
        if (length == 0) { /* the space is invariant: another start */
            draw(s, next);
            length = orthogonalise(s, next, locked + steps, &ignored);
        }
        scale(next, 1 / length, size);
    }
    memset(s->rotation, 0, steps * steps * sizeof(double));
    for (int64_t i = 0; i < steps; i++) s->rotation[i * steps + i] = 1;
    if (!ritz(s, steps, steps)) return false;
    for (int64_t i = 0; i < wanted; i++) {
        double *vector = s->vectors + (locked + i) * size, *image = start + steps * size;
        memset(vector, 0, size * sizeof(double));
        for (int64_t j = 0; j < steps; j++) add(vector, s->rotation[s->ranks[i] * steps + j], start + j * size, size);
        scale(vector, 1 / sqrt(dot(vector, vector, size)), size);
        multiply(&s->matrix, vector, image);
        s->values[locked + i] = dot(vector, image, size);
    }
    return true;
}

#endif
