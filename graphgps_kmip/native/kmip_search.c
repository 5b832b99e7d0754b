/* Exact search of the K largest inner products on a CPU, in batches of graphs (called by search/cpu.py). */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "simd.h"
#include "threads.h"
#include "keys.h"
#include "tile.h"

#define GROUP 16 /* tiles of queries that pass over the same panels while these are in the cache, */
#define SUPER 64 /* so many panels at a time */
/* Keys of a graph from which norm order and the integer screen pay for their making (measured: docs/search.md). */
#define SORTED_FROM 1024

typedef struct {
    const real *q, *k;             /* (heads, N, dim), (heads, M, dim) */
    const int64_t *ptr_q, *ptr_k;  /* (graphs + 1) */
    long heads, num_queries, num_all_keys, graphs;
    int dim, num_keys, norm_order, screen, num_threads;
    int64_t *index;                /* (heads, N, K) */
    real *score;
    int64_t *stats;                /* pairs scored, pairs screened, keys inserted, keys that survived the screen */
    Keys shared;                   /* the large graph and head at hand: all threads work on it */
    const int32_t *order;
    const real *shared_k;
    long graph, head;
    Queue queue;
    pthread_mutex_t lock;
    int failed;
} Search;

typedef struct {
    char *memory;                  /* of the tiles and, for small graphs, of their keys */
    size_t size;
    Tile tiles[GROUP];
    int64_t stats[4];
} Worker;

static int reserve(Worker *worker, size_t size) {
    if (size <= worker->size) return 1;
    free(worker->memory);
    worker->memory = malloc(size);
    worker->size = worker->memory ? size : 0;
    return worker->memory != NULL;
}

static size_t tiles_size(int dim, int num_keys) {
    return GROUP * (2 * aligned((size_t)ROWS * MAX(num_keys, SHORT_LIST) * sizeof(real)) + 2 * aligned((size_t)ROWS * (dim + 3) * sizeof(real)));
}

/* Norm order ends a row early unless scores rise while norms fall: then every key enters, and this many say so. */
static long most_inserts(const Keys *keys, int num_keys) {
    double rounds = log2((double)keys->count / num_keys + 2);
    return (long)(ROWS * (4 * num_keys * rounds + 256));
}

/* The remaining panels in an order that no data set knows: steps by the golden ratio, so new maxima are rare. */
static void scan_scattered(Tile *tile, const Keys *keys, long from, int num_keys) {
    long rest = keys->panels - from, step = (long)(rest * 0.6180339887498949) | 1;
    while (rest > 1) { /* the step must share no factor with the number of panels */
        long a = rest, b = step;
        while (b) { long c = a % b; a = b; b = c; }
        if (a == 1) break;
        step++;
    }
    for (long i = 0, at = 0; i < rest; i++, at = (at + step) % rest)
        if (!hopeless(tile, keys->norm[from + at])) scan(tile, keys, from + at, num_keys);
    settle(tile, keys, num_keys);
    tile->done = 1;
}

static void search_group(Search *s, Worker *worker, const Keys *keys, char *memory, long graph, long head, long first) {
    long from_q = s->ptr_q[graph], count = s->ptr_q[graph + 1] - from_q - first;
    int dim = s->dim, num_keys = s->num_keys, tiles = 0;
    const real *q = s->q + (head * s->num_queries + from_q + first) * dim;
    if (count > GROUP * ROWS) count = GROUP * ROWS;
    for (long row = 0; row < count; row += ROWS, tiles++) {
        Tile *tile = &worker->tiles[tiles];
        int rows = count - row < ROWS ? (int)(count - row) : ROWS;
        tile->columns = carve(&memory, ROWS * dim * sizeof(real));
        tile->bytes = carve(&memory, ROWS * 4 * ((dim + 3) / 4));
        tile->score = carve(&memory, ROWS * MAX(num_keys, SHORT_LIST) * sizeof(real));
        tile->id = carve(&memory, ROWS * MAX(num_keys, SHORT_LIST) * sizeof(int32_t));
        pack_tile(tile, q + row * dim, rows, dim, num_keys);
        seed(tile, keys, MIN(keys->panels, SUPER + keys->panels / 32), num_keys);
    }
    long limit = s->norm_order ? most_inserts(keys, num_keys) : LONG_MAX;
    for (long super = 0; super < keys->panels; super += SUPER) {
        long end = super + SUPER < keys->panels ? super + SUPER : keys->panels;
        for (int t = 0; t < tiles; t++) {
            Tile *tile = &worker->tiles[t];
            for (long panel = super; panel < end && !tile->done; panel++) {
                if (hopeless(tile, keys->norm[panel])) tile->done = s->norm_order;
                else scan(tile, keys, panel, num_keys);
                if (tile->inserted > limit) scan_scattered(tile, keys, panel + 1, num_keys);
            }
            settle(tile, keys, num_keys);
        }
    }
    int64_t from_k = s->ptr_k[graph];
    for (int t = 0; t < tiles; t++) {
        Tile *tile = &worker->tiles[t];
        long row = head * s->num_queries + from_q + first + t * ROWS;
        for (int j = 0; j < tile->count; j++)
            for (int i = 0; i < num_keys; i++) {
                int32_t id = tile->id[j * tile->stride + i];
                s->index[(row + j) * num_keys + i] = id < 0 ? -1 : from_k + id;
                s->score[(row + j) * num_keys + i] = tile->score[j * tile->stride + i];
            }
        worker->stats[0] += tile->scored * ROWS * PANEL;
        worker->stats[1] += tile->seen * ROWS * PANEL;
        worker->stats[2] += tile->inserted;
        worker->stats[3] += tile->survived;
    }
}

static void finish(Search *s, Worker *worker, int failed) {
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < 4; i++) s->stats[i] += worker->stats[i];
    s->failed |= failed;
    pthread_mutex_unlock(&s->lock);
    free(worker->memory);
}

static long keys_of(const Search *s, long graph) { return s->ptr_k[graph + 1] - s->ptr_k[graph]; }

/* Small graphs: a thread packs and searches a whole (graph, head). */
static void *search_small(void *argument) {
    Search *s = argument;
    Worker worker = {0};
    long item, end;
    int failed = 0;
    while (!failed && (item = take(&s->queue, 1, &end)) < end) {
        long graph = item / s->heads, head = item % s->heads, count = keys_of(s, graph);
        long queries = s->ptr_q[graph + 1] - s->ptr_q[graph];
        if (count == 0 || queries == 0 || count >= SORTED_FROM) continue;
        size_t keys_bytes = keys_size(count, s->dim, 0);
        if (!reserve(&worker, keys_bytes + tiles_size(s->dim, s->num_keys) + 8 * ALIGN)) { failed = 1; break; }
        Keys keys;
        keys_place(&keys, count, s->dim, 0, worker.memory);
        for (long panel = 0; panel < keys.panels; panel++)
            pack_panel(&keys, s->k + (head * s->num_all_keys + s->ptr_k[graph]) * s->dim, NULL, panel);
        for (long first = 0; first < queries; first += GROUP * ROWS)
            search_group(s, &worker, &keys, worker.memory + keys_bytes, graph, head, first);
    }
    finish(s, &worker, failed);
    return NULL;
}

static void *pack_shared(void *argument) {
    Search *s = argument;
    long panel, end;
    while ((panel = take(&s->queue, 16, &end)) < end)
        for (; panel < end; panel++) pack_panel(&s->shared, s->shared_k, s->order, panel);
    return NULL;
}

static void *search_shared(void *argument) {
    Search *s = argument;
    Worker worker = {0};
    long group, end;
    int failed = !reserve(&worker, tiles_size(s->dim, s->num_keys) + ALIGN);
    while (!failed && (group = take(&s->queue, 1, &end)) < end)
        search_group(s, &worker, &s->shared, worker.memory, s->graph, s->head, group * GROUP * ROWS);
    finish(s, &worker, failed);
    return NULL;
}

/* Numbers of the keys by falling norm: three passes of a radix sort over the bits of the squared norms. */
static void sort_by_norm(const real *k, long count, int dim, int32_t *order, uint32_t *bits, int32_t *spare) {
    for (long key = 0; key < count; key++) {
        float square = 0;
        for (int i = 0; i < dim; i++) square += (float)k[key * dim + i] * (float)k[key * dim + i];
        memcpy(&bits[key], &square, 4); /* the bits of floats >= 0 are in their order */
        spare[key] = (int32_t)key;
    }
    for (int pass = 0; pass < 3; pass++) {
        long start[2048] = {0}, sum = 0;
        int shift = 11 * pass;
        for (long i = 0; i < count; i++) start[2047 - (bits[i] >> shift & 2047)]++;
        for (int i = 0; i < 2048; i++) { long here = start[i]; start[i] = sum; sum += here; }
        for (long i = 0; i < count; i++) order[start[2047 - (bits[spare[i]] >> shift & 2047)]++] = spare[i];
        memcpy(spare, order, count * sizeof(int32_t));
    }
}

static int search_large(Search *s, long graph, long head) {
    long count = keys_of(s, graph), queries = s->ptr_q[graph + 1] - s->ptr_q[graph];
    char *memory = malloc(keys_size(count, s->dim, s->screen) + 3 * aligned(count * 4) + ALIGN), *rest = memory;
    if (!memory) return ENOMEM;
    int32_t *order = carve(&rest, count * 4), *spare = carve(&rest, count * 4);
    uint32_t *bits = carve(&rest, count * 4);
    s->graph = graph;
    s->head = head;
    s->shared_k = s->k + (head * s->num_all_keys + s->ptr_k[graph]) * s->dim;
    s->order = s->norm_order ? order : NULL;
    if (s->norm_order) sort_by_norm(s->shared_k, count, s->dim, order, bits, spare);
    keys_place(&s->shared, count, s->dim, s->screen, rest);
    atomic_store(&s->queue.next, 0);
    s->queue.items = s->shared.panels;
    run_parallel(pack_shared, s, s->num_threads);
    atomic_store(&s->queue.next, 0);
    s->queue.items = (queries + GROUP * ROWS - 1) / (GROUP * ROWS);
    run_parallel(search_shared, s, s->num_threads);
    free(memory);
    return s->failed ? ENOMEM : 0;
}

/* Returns 0, or ENOMEM; options: 1 norm order, 2 integer screen; stats (4) may be NULL. */
int kmip_search(const real *q, const real *k, const int64_t *ptr_q, const int64_t *ptr_k, long heads, long num_queries,
                long num_all_keys, long graphs, int dim, int num_keys, int options, int num_threads, int64_t *index,
                real *score, int64_t *stats) {
    int64_t nowhere[4] = {0};
    Search s = {.q = q, .k = k, .ptr_q = ptr_q, .ptr_k = ptr_k, .heads = heads, .num_queries = num_queries,
                .num_all_keys = num_all_keys, .graphs = graphs, .dim = dim, .num_keys = num_keys,
                .norm_order = options & 1, .screen = 0, .num_threads = num_threads, .index = index, .score = score,
                .stats = stats ? stats : nowhere, .lock = PTHREAD_MUTEX_INITIALIZER};
#ifdef BYTES
    s.screen = (options & 2) != 0;
#endif
    int failed = 0, small = 0;
    for (long graph = 0; graph < graphs; graph++) small |= keys_of(&s, graph) > 0 && keys_of(&s, graph) < SORTED_FROM;
    if (small) {
        s.queue.items = graphs * heads;
        run_parallel(search_small, &s, num_threads);
        failed = s.failed;
    }
    for (long graph = 0; graph < graphs && !failed; graph++)
        for (long head = 0; head < heads && !failed; head++)
            if (keys_of(&s, graph) >= SORTED_FROM && ptr_q[graph + 1] > ptr_q[graph]) failed = search_large(&s, graph, head);
    return failed ? ENOMEM : 0;
}

/* Which code was compiled: for docs, benchmarks and tests. */
int kmip_search_features(void) {
    int features = LANES;
#ifdef BYTES
    features |= 256;
#endif
    return features;
}
