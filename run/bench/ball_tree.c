/* Ball tree for exact search of the K largest inner products on a CPU (called by ball_tree.py).
 *
 * All inside is double, in which products of floats are exact. The caller owns the nodes: node 0 is the root, the
 * children of a node are child and child + 1 (child 0: a leaf), its keys are the rows start to start + count. */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "threads.h"

#define QUERIES 16         /* that a thread takes at a time */
#define UNDERFLOW 0x1p-500 /* above the root of what a sum of squares loses by underflow, for up to 2^22 channels */

typedef struct { int64_t start, count, child, depth; } Node;

typedef struct { double bound; int64_t node; } Visit;

typedef struct {
    const double *keys; /* those of a leaf as (dim, count): the loop over keys is the inner one */
    const int64_t *ids;
    const Node *nodes;
    const double *centre, *radius, *queries;
    long dim, num_keys, leaf_size, depth;
    double *score;
    int64_t *index, *visited;
    Queue queue;
    atomic_int failed;
} Search;

static double squared_distance(const double *x, const double *y, long dim) {
    double sum = 0;
    for (long i = 0; i < dim; i++) sum += (x[i] - y[i]) * (x[i] - y[i]);
    return sum;
}

static double dot(const double *x, const double *y, long dim) {
    double sum = 0;
    for (long i = 0; i < dim; i++) sum += x[i] * y[i];
    return sum;
}

static long farthest(const double *from, const double *rows, long count, long dim, double *largest) {
    long best = 0;
    *largest = -1;
    for (long row = 0; row < count; row++) {
        double distance = squared_distance(from, rows + row * dim, dim);
        if (distance > *largest) { *largest = distance; best = row; }
    }
    return best;
}

/* A number that looks random and is the same in whatever order the nodes are split (the mixer of SplitMix64). */
static uint64_t mixed(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Centre and radius; the radius is widened so that rounding never puts the bound below the score of a key inside:
 * with eps = DBL_EPSILON, twice the unit roundoff, a distance is wrong by less than (dim + 4) eps / 2 of itself; the
 * products of q with the centre c and with a key x are wrong by dim eps / 2 |q| |c| and dim eps / 2 |q| |x|, where
 * |x| <= |c| + r; |q| and the last sum add a few eps. (2 dim + 8) eps (|c| + r) covers all of it. */
static double enclose(const double *rows, long count, long dim, double *centre) {
    double largest;
    memset(centre, 0, dim * sizeof(double));
    for (long row = 0; row < count; row++)
        for (long i = 0; i < dim; i++) centre[i] += rows[row * dim + i];
    for (long i = 0; i < dim; i++) centre[i] /= count;
    farthest(centre, rows, count, dim, &largest);
    double radius = sqrt(largest);
    return radius + (2 * dim + 8) * DBL_EPSILON * (sqrt(dot(centre, centre, dim)) + radius) + UNDERFLOW;
}

/* Puts the keys nearer to a than to b first, both parts in their old order; returns how many these are. */
static long split(double *rows, int64_t *ids, long count, long dim, uint64_t pick, double *spare, int64_t *spare_ids) {
    double *a = spare, *b = spare + dim, *far = spare + 2 * dim, ignored;
    long near = 0, moved = 0, size = dim * sizeof(double);
    memcpy(a, rows + farthest(rows + (long)(pick % count) * dim, rows, count, dim, &ignored) * dim, size);
    memcpy(b, rows + farthest(a, rows, count, dim, &ignored) * dim, size);
    for (long row = 0; row < count; row++) {
        const double *key = rows + row * dim;
        if (squared_distance(key, a, dim) <= squared_distance(key, b, dim)) {
            memmove(rows + near * dim, key, size);
            ids[near++] = ids[row];
        } else {
            memcpy(far + moved * dim, key, size);
            spare_ids[moved++] = ids[row];
        }
    }
    memcpy(rows + near * dim, far, moved * size);
    memcpy(ids + near, spare_ids, moved * sizeof(int64_t));
    return moved ? near : count / 2; /* all keys are equal: halve them, or the tree would be a list */
}

/* Orders keys (M, dim) and ids (M) by leaf and fills nodes, centre and radius, with room for 2 M - 1 each. Breadth
 * first, so no stack: far outliers can make a tree as deep as it has keys. Returns the number of nodes, or -ENOMEM. */
long ball_tree_build(double *keys, int64_t *ids, long num_keys, long dim, long leaf_size, uint64_t seed, Node *nodes,
                     double *centre, double *radius) {
    double *spare = malloc((num_keys + 2) * (dim + 1) * 8); /* two keys and all keys, and all ids */
    int64_t *spare_ids = (int64_t *)(spare + (num_keys + 2) * dim);
    long num_nodes = 1;
    if (!spare) return -ENOMEM;
    nodes[0] = (Node){0, num_keys, 0, 0};
    for (long at = 0; at < num_nodes; at++) {
        Node *node = &nodes[at];
        double *rows = keys + node->start * dim;
        radius[at] = enclose(rows, node->count, dim, centre + at * dim);
        if (node->count <= leaf_size) {
            memcpy(spare, rows, node->count * dim * sizeof(double));
            for (long row = 0; row < node->count; row++)
                for (long i = 0; i < dim; i++) rows[i * node->count + row] = spare[row * dim + i];
            continue;
        }
        uint64_t pick = mixed(mixed(seed ^ (uint64_t)node->start) ^ (uint64_t)node->count);
        long near = split(rows, ids + node->start, node->count, dim, pick, spare, spare_ids);
        node->child = num_nodes;
        nodes[num_nodes++] = (Node){node->start, near, 0, node->depth + 1};
        nodes[num_nodes++] = (Node){node->start + near, node->count - near, 0, node->depth + 1};
    }
    free(spare);
    return num_nodes;
}

/* Puts a key in the place of the worst one of a heap whose root is the worst. */
static void replace_worst(double *score, int64_t *index, long size, double new_score, int64_t new_index) {
    long at = 0;
    for (long child = 1; child < size; child = 2 * at + 1) {
        if (child + 1 < size && score[child + 1] < score[child]) child++;
        if (score[child] >= new_score) break;
        score[at] = score[child];
        index[at] = index[child];
        at = child;
    }
    score[at] = new_score;
    index[at] = new_index;
}

static void score_leaf(const Search *s, const Node *leaf, const double *q, double *scores, double *best, int64_t *id) {
    const double *keys = s->keys + leaf->start * s->dim;
    memset(scores, 0, leaf->count * sizeof(double));
    for (long i = 0; i < s->dim; i++)
        for (long key = 0; key < leaf->count; key++) scores[key] += q[i] * keys[i * leaf->count + key];
    for (long key = 0; key < leaf->count; key++)
        if (scores[key] > best[0]) replace_worst(best, id, s->num_keys, scores[key], s->ids[leaf->start + key]);
}

static Visit bounded(const Search *s, const double *q, double norm, int64_t node) {
    return (Visit){dot(q, s->centre + node * s->dim, s->dim) + s->radius[node] * norm, node};
}

static void search_query(const Search *s, long query, Visit *stack, double *scores) {
    const double *q = s->queries + query * s->dim;
    double norm = sqrt(dot(q, q, s->dim)) * (1 + (s->dim + 4) * DBL_EPSILON) + UNDERFLOW;
    double *best = s->score + query * s->num_keys;
    int64_t *found = s->index + query * s->num_keys, entered = 0;
    long open = 0;
    stack[open++] = bounded(s, q, norm, 0);
    while (open) {
        Visit visit = stack[--open];
        const Node *node = &s->nodes[visit.node];
        if (visit.bound <= best[0]) continue; /* -inf while the heap has room; false for NaN, after an overflow */
        entered++;
        if (!node->child) { score_leaf(s, node, q, scores, best, found); continue; }
        Visit first = bounded(s, q, norm, node->child), second = bounded(s, q, norm, node->child + 1);
        int swapped = second.bound > first.bound;
        stack[open++] = swapped ? first : second;
        stack[open++] = swapped ? second : first;
    }
    s->visited[query] = entered;
}

static void *search_some(void *argument) {
    Search *s = argument;
    Visit *stack = malloc((s->depth + 2) * sizeof(Visit)); /* a level leaves one sibling behind */
    double *scores = malloc(s->leaf_size * sizeof(double));
    long query, end;
    if (!stack || !scores) s->failed = 1;
    while (!s->failed && (query = take(&s->queue, QUERIES, &end)) < end)
        for (; query < end; query++) search_query(s, query, stack, scores);
    free(stack);
    free(scores);
    return NULL;
}

/* Searches queries (N, dim). Before, index (N, K) holds -1 and score (N, K) -inf; after, each row is a heap, unsorted.
 * Nodes are depth levels deep, no leaf has more than leaf_size keys. Returns 0 or ENOMEM. */
int ball_tree_search(const double *keys, const int64_t *ids, long dim, long leaf_size, long depth,
                     const Node *nodes, const double *centre, const double *radius, const double *q, long num_queries,
                     long num_keys, int num_threads, int64_t *index, double *score, int64_t *visited) {
    Search s = {.keys = keys, .ids = ids, .nodes = nodes, .centre = centre, .radius = radius, .queries = q,
                .dim = dim, .num_keys = num_keys, .leaf_size = leaf_size, .depth = depth, .index = index,
                .score = score, .visited = visited, .queue = {.items = num_queries}};
    run_parallel(search_some, &s, num_threads);
    return s.failed ? ENOMEM : 0;
}
