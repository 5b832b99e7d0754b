/* A sparse symmetric matrix in an order that keeps neighbours close, and its factors L D L^T inside the envelope: of
 * each row what lies between its first non-zero and the diagonal, which elimination without pivoting never leaves
 * (Jennings 1966).
 */
#ifndef ENVELOPE_H
#define ENVELOPE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const int64_t *indptr, *column; /* the matrix as it is given */
    const double *value;
    int64_t size;
    int64_t *order, *place;         /* (size): which row comes where, and the inverse */
    int64_t *level, *first;         /* (size): hops from the first row; first non-zero of each row, in the order */
    int64_t *start, *at;            /* (size + 1), (entries): the matrix in the order */
    double *entry;                  /* (entries) */
    double **lower, *inside;        /* (size): lower[i][j] is L[i, j], and where these rows lie */
    double *pivot;                  /* (size): D */
} Envelope;

static inline double dot(const double *restrict a, const double *restrict b, int64_t size) {
    double sum = 0;
    for (int64_t i = 0; i < size; i++) sum += a[i] * b[i];
    return sum;
}

static inline void add(double *restrict sum, double factor, const double *restrict a, int64_t size) {
    for (int64_t i = 0; i < size; i++) sum[i] += factor * a[i];
}

static inline void scale(double *x, double factor, int64_t size) {
    for (int64_t i = 0; i < size; i++) x[i] *= factor;
}

static inline int64_t degree(const Envelope *a, int64_t row) { return a->indptr[row + 1] - a->indptr[row]; }

/* Numbers the rows hop by hop from one of them, neighbours of small degree first (Cuthill and McKee 1969); returns how
 * many can be reached. */
static int64_t spread(Envelope *a, int64_t from) {
    int64_t count = 1;
    for (int64_t i = 0; i < a->size; i++) a->level[i] = -1;
    a->order[0] = from;
    a->level[from] = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t row = a->order[i], begin = count;
        for (int64_t e = a->indptr[row]; e < a->indptr[row + 1]; e++) {
            int64_t next = a->column[e], to = count;
            if (a->level[next] >= 0) continue;
            a->level[next] = a->level[row] + 1;
            for (; to > begin && degree(a, a->order[to - 1]) > degree(a, next); to--) a->order[to] = a->order[to - 1];
            a->order[to] = next;
            count++;
        }
    }
    return count;
}

/* Orders the rows by reverse Cuthill-McKee from an end of the graph (George and Liu 1979) and finds the envelope.
 * Returns how many entries lie inside, without the diagonal, or -1 where not all rows are connected. */
static int64_t arrange(Envelope *a) {
    int64_t end = 0, depth = -1, entries = 0;
    if (spread(a, 0) < a->size) return -1;
    while (a->level[a->order[a->size - 1]] > depth) {
        depth = a->level[a->order[a->size - 1]];
        end = a->order[a->size - 1];
        for (int64_t i = a->size - 1; a->level[a->order[i]] == depth; i--) {
            if (degree(a, a->order[i]) < degree(a, end)) end = a->order[i];
            if (i == 0) break;
        }
        spread(a, end);
    }
    for (int64_t i = 0; i < a->size / 2; i++) {
        int64_t other = a->order[i];
        a->order[i] = a->order[a->size - 1 - i];
        a->order[a->size - 1 - i] = other;
    }
    for (int64_t i = 0; i < a->size; i++) a->place[a->order[i]] = i;
    a->start[0] = 0;
    for (int64_t i = 0; i < a->size; i++) {
        int64_t row = a->order[i], out = a->start[i];
        a->first[i] = i;
        for (int64_t e = a->indptr[row]; e < a->indptr[row + 1]; e++, out++) {
            a->at[out] = a->place[a->column[e]];
            a->entry[out] = a->value[e];
            if (a->at[out] < a->first[i]) a->first[i] = a->at[out];
        }
        a->start[i + 1] = out;
        entries += i - a->first[i];
    }
    return entries;
}

/* Factorises A - shift I. Returns how many pivots are negative: as many eigenvalues lie below the shift (Sylvester's
 * law of inertia); -1 where pivots grow so large that rounding may have changed that. */
static int64_t factorise(Envelope *a, double shift) {
    int64_t negative = 0;
    double *row = a->inside, largest = 0;
    for (int64_t i = 0; i < a->size; i++) {
        int64_t first = a->first[i];
        double pivot = -shift;
        memset(row, 0, (i - first) * sizeof *row);
        a->lower[i] = row - first;
        for (int64_t e = a->start[i]; e < a->start[i + 1]; e++) {
            if (a->at[e] < i) row[a->at[e] - first] += a->entry[e];
            if (a->at[e] == i) pivot += a->entry[e];
        }
        for (int64_t j = first + 1; j < i; j++) {
            int64_t begin = a->first[j] > first ? a->first[j] : first;
            row[j - first] -= dot(row + begin - first, a->lower[j] + begin, j - begin);
        }
        for (int64_t j = first; j < i; j++) {
            double scaled = row[j - first] / a->pivot[j];
            pivot -= scaled * row[j - first];
            row[j - first] = scaled;
        }
        a->pivot[i] = pivot == 0 ? 0x1p-500 : pivot;
        negative += a->pivot[i] < 0;
        largest = fmax(largest, fabs(pivot));
        row += i - first;
    }
    return largest < 1e9 ? negative : -1;
}

/* x = (L D L^T)^-1 x */
static void solve(const Envelope *a, double *x) {
    for (int64_t i = 0; i < a->size; i++) x[i] -= dot(a->lower[i] + a->first[i], x + a->first[i], i - a->first[i]);
    for (int64_t i = 0; i < a->size; i++) x[i] /= a->pivot[i];
    for (int64_t i = a->size - 1; i >= 0; i--)
        add(x + a->first[i], -x[i], a->lower[i] + a->first[i], i - a->first[i]);
}

/* out = A x */
static void multiply(const Envelope *a, const double *x, double *out) {
    for (int64_t i = 0; i < a->size; i++) {
        out[i] = 0;
        for (int64_t e = a->start[i]; e < a->start[i + 1]; e++) out[i] += a->entry[e] * x[a->at[e]];
    }
}

#endif
