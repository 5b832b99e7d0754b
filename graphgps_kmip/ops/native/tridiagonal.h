/* Eigenvalues of symmetric tridiagonal matrices by QL steps with implicit shifts (Wilkinson 1968). */
#ifndef TRIDIAGONAL_H
#define TRIDIAGONAL_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define QL_STEPS 60 /* for one eigenvalue; two or three are usual */

/* Turns the columns of two rows of `width` entries. */
static inline void turn(double *restrict upper, double *restrict lower, double cosine, double sine, int64_t width) {
    for (int64_t c = 0; c < width; c++) {
        double old = lower[c];
        lower[c] = sine * upper[c] + cosine * old;
        upper[c] = cosine * upper[c] - sine * old;
    }
}

/* One step on the block from `low` to `high`: rotations that chase a bulge from its lower end to the upper one. */
static void ql_step(double *diagonal, double *beside, int64_t low, int64_t high, double *rows, int64_t width) {
    double half = (diagonal[low + 1] - diagonal[low]) / (2 * beside[low]);
    double shift = diagonal[low] - beside[low] / (half + copysign(sqrt(half * half + 1), half));
    double bulge = diagonal[high] - shift, sine = 1, cosine = 1, moved = 0;
    for (int64_t i = high - 1; i >= low; i--) {
        double out = sine * beside[i], along = cosine * beside[i], length = sqrt(bulge * bulge + out * out);
        beside[i + 1] = length;
        if (length == 0) { /* the block falls apart here */
            diagonal[i + 1] -= moved;
            beside[high] = 0;
            return;
        }
        sine = out / length;
        cosine = bulge / length;
        double corner = diagonal[i + 1] - moved;
        double change = (diagonal[i] - corner) * sine + 2 * cosine * along;
        moved = sine * change;
        diagonal[i + 1] = corner + moved;
        bulge = cosine * change - along;
        turn(rows + i * width, rows + (i + 1) * width, cosine, sine, width);
    }
    diagonal[low] -= moved;
    beside[low] = bulge;
    beside[high] = 0;
}

/* Replaces the diagonal by the eigenvalues, in no order, and each of the `width` columns of `rows` (size, width) by
 * V^T times it, where the columns of V are the eigenvectors. `beside` is destroyed; it has `size` entries, of which
 * the last is not read. Returns false where an eigenvalue does not converge. */
static bool diagonalise(double *diagonal, double *beside, int64_t size, double *rows, int64_t width) {
    beside[size - 1] = 0;
    for (int64_t low = 0, step = 0; low < size;) {
        int64_t high = low; /* the block from low to high does not fall apart */
        while (high < size - 1 && fabs(beside[high]) > 0x1p-53 * (fabs(diagonal[high]) + fabs(diagonal[high + 1])))
            high++;
        if (high > low && step++ == QL_STEPS) return false;
        if (high > low) {
            ql_step(diagonal, beside, low, high, rows, width);
        } else {
            low++;
            step = 0;
        }
    }
    return true;
}

#endif
