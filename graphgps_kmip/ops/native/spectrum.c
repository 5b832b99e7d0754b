/* The smallest eigenpairs of many sparse symmetric matrices (called by encoding/eigensolver.py): Lanczos runs on the
 * factorised matrix, and an exact count of what they missed.
 *
 * One run sees a repeated eigenvalue once. So the eigenvalues below the last one found are counted (the signs of the
 * pivots of a second factorisation); where some are missing, another run follows, orthogonal to what was found.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* A sparse symmetric matrix in an order that keeps neighbours close, and its factors L D L^T inside the envelope: of
 * each row what is between its first non-zero and the diagonal, which elimination without pivoting never leaves
 * (Jennings 1966).
 */

typedef struct {
    const int64_t *indptr, *column; /* the matrix as it is given */
    const double *value;
    int64_t size;
    int64_t *order, *place;         /* (size): which row comes where, and the inverse */
    int64_t *level, *first;         /* (size): hops from the first row; first non-zero of each row, in the order */
    int64_t *start, *at;            /* (size + 1), (entries): the matrix in the order */
    double *entry;                  /* (entries) */
    double **lower, *inside;        /* (size): lower[i][j] is L[i, j], and where these rows are */
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
 * Returns how many entries are inside, without the diagonal, or -1 where not all rows are connected. */
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

/* Factorises A - shift I. Returns how many pivots are negative: as many eigenvalues are below the shift (Sylvester's
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

/* Eigenvalues of symmetric tridiagonal matrices by QL steps with implicit shifts (Wilkinson 1968). */

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

/* Lanczos runs on the inverse of a shifted sparse matrix, with full reorthogonalisation: the largest eigenvalues of the
 * inverse are those next to the shift, and they come first (Ericsson and Ruhe 1980).
 */

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

/* Says whether the `num_pairs` largest eigenvalues have converged: the last entries of their eigenvectors tell. */
static bool converged(Lanczos *s, int64_t steps, int64_t num_pairs) {
    memset(s->rotation, 0, steps * sizeof(double));
    s->rotation[steps - 1] = 1;
    if (!ritz(s, steps, 1)) return false;
    for (int64_t i = 0; i < num_pairs; i++) {
        int64_t at = s->ranks[i];
        if (fabs(s->beta[steps - 1] * s->rotation[at]) > TOLERANCE * s->theta[at]) return false;
    }
    return true;
}

/* Finds `num_pairs` eigenpairs orthogonal to the `locked` ones found before and puts them after these; the matrix is
 * factorised. Returns false where they do not converge. */
static bool lanczos(Lanczos *s, int64_t locked, int64_t num_pairs) {
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
        if (steps == most || (steps >= 2 * num_pairs && steps % CHECK_EVERY == 0)) done = converged(s, steps, num_pairs);
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
    for (int64_t i = 0; i < num_pairs; i++) {
        double *vector = s->vectors + (locked + i) * size, *image = start + steps * size;
        memset(vector, 0, size * sizeof(double));
        for (int64_t j = 0; j < steps; j++) add(vector, s->rotation[s->ranks[i] * steps + j], start + j * size, size);
        scale(vector, 1 / sqrt(dot(vector, vector, size)), size);
        multiply(&s->matrix, vector, image);
        s->values[locked + i] = dot(vector, image, size);
    }
    return true;
}

#define WIDEST 0.25   /* of size^2 entries may be inside the envelope: dense solvers are faster from there */
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

/* Finds the `count` smallest eigenpairs: runs until as many are below the last one as the matrix has. */
static int smallest(Lanczos *s, int64_t count, double shift) {
    int64_t inside = arrange(&s->matrix), num_found = 0, missing = count;
    if (inside < 0) return UNCONNECTED;
    if (inside > WIDEST * s->matrix.size * s->matrix.size) return WIDE;
    for (int64_t run = 0; run <= count; run++) {
        if (factorise(&s->matrix, shift) < 0) return UNSTABLE;
        if (!lanczos(s, num_found, missing)) return NOT_CONVERGED;
        sort(s, num_found + missing, s->basis);
        num_found = count;
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
        int64_t num_entries = indptr[begin[m] + size[m]] - indptr[begin[m]];
        if (size[m] > rows) rows = size[m];
        if (num_entries > entries) entries = num_entries;
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
