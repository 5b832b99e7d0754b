/* Exact search of the K largest inner products on a CPU, in batches of graphs (called by search/fused_cpu.py). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "simd.h"
#include "threads.h"
#include "bytes.h"
#include "keys.h"
#include "tile.h"
#include "scan.h"
#include "tree.h"

#define GROUP 16 /* tiles of queries that pass over the same panels while these are in the cache */
/* Keys of a graph from which norm order and the integer screen pay for their making (measured: docs/exact-search.md). */
#define SORTED_FROM 1024

typedef struct {
    const real *q, *k;             /* (heads, N, dim), (heads, M, dim) */
    const int64_t *ptr_q, *ptr_k;  /* (graphs + 1) */
    long heads, num_queries, num_all_keys, graphs;
    int dim, num_keys, norm_order, screen, use_tree, num_threads;
    int64_t *index;                /* (heads, N, K) */
    real *score;
    int64_t *stats;                /* pairs scored, pairs screened, keys inserted, keys that survived the screen */
    Keys shared;                   /* the large graph and head at hand: all threads work on it */
    const int32_t *order_k, *order_q; /* in which its keys and queries are taken; NULL: in their own order */
    const Tree *tree;              /* over its keys, or NULL */
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
    size_t lists = 2 * aligned((size_t)ROWS * MAX(num_keys, SHORT_LIST) * sizeof(real));
    size_t queries = aligned((size_t)ROWS * dim * sizeof(real)) + aligned((size_t)ROWS * QUERY_BYTES * byte_groups(dim));
    return GROUP * (lists + queries + aligned((size_t)ROWS * BUFFER(num_keys) * sizeof(Ranked)));
}

/* Up to GROUP tiles of queries of one graph and head, from its query `first` on. */
static void search_group(Search *s, Worker *worker, const Keys *keys, char *memory, long graph, long head, long first) {
    long from_q = head * s->num_queries + s->ptr_q[graph], left = s->ptr_q[graph + 1] - s->ptr_q[graph] - first;
    int dim = s->dim, num_keys = s->num_keys, count = (int)MIN(left, GROUP * ROWS), tiles = (count + ROWS - 1) / ROWS;
    int places = MAX(num_keys, SHORT_LIST);
    const int32_t *order = keys == &s->shared && s->order_q ? s->order_q + first : NULL;
    for (int t = 0; t < tiles; t++) {
        Tile *tile = &worker->tiles[t];
        tile->columns = carve(&memory, ROWS * dim * sizeof(real));
        tile->bytes = carve(&memory, (size_t)ROWS * QUERY_BYTES * byte_groups(dim));
        tile->score = carve(&memory, ROWS * places * sizeof(real));
        tile->id = carve(&memory, ROWS * places * sizeof(int32_t));
        tile->buffer = carve(&memory, (size_t)ROWS * BUFFER(num_keys) * sizeof(Ranked));
        const real *q = s->q + (from_q + (order ? 0 : first + t * ROWS)) * dim;
        pack_tile(tile, q, order ? order + t * ROWS : NULL, MIN(ROWS, count - t * ROWS), dim, num_keys);
        if (keys == &s->shared && s->tree)
            search_tree(tile, t ? tile - 1 : NULL, keys, s->tree, s->shared_k, num_keys);
    }
    if (keys != &s->shared || !s->tree)
        search_panels(worker->tiles, tiles, keys, keys == &s->shared && s->norm_order, num_keys);
    for (int t = 0; t < tiles; t++) finish_lists(&worker->tiles[t], num_keys);
    for (int row = 0; row < count; row++) {
        Tile *tile = &worker->tiles[row / ROWS];
        long place = (from_q + (order ? order[row] : first + row)) * num_keys;
        for (int i = 0; i < num_keys; i++) {
            int32_t id = tile->id[row % ROWS * tile->stride + i];
            s->index[place + i] = id < 0 ? -1 : s->ptr_k[graph] + id;
            s->score[place + i] = tile->score[row % ROWS * tile->stride + i];
        }
    }
    for (int t = 0; t < tiles; t++) {
        const Tile *tile = &worker->tiles[t];
        int64_t counts[4] = {tile->scored * ROWS * PANEL, tile->seen * ROWS * PANEL, tile->inserted, tile->survived};
        for (int i = 0; i < 4; i++) worker->stats[i] += counts[i];
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
        for (long super = 0; super * SUPER < keys.panels; super++)
            pack_super(&keys, s->k + (head * s->num_all_keys + s->ptr_k[graph]) * s->dim, NULL, super);
        for (long first = 0; first < queries; first += GROUP * ROWS)
            search_group(s, &worker, &keys, worker.memory + keys_bytes, graph, head, first);
    }
    finish(s, &worker, failed);
    return NULL;
}

static void *pack_shared(void *argument) {
    Search *s = argument;
    long super, end;
    while ((super = take(&s->queue, 1, &end)) < end) pack_super(&s->shared, s->shared_k, s->order_k, super);
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

static int search_large(Search *s, long graph, long head) {
    long count = keys_of(s, graph), queries = s->ptr_q[graph + 1] - s->ptr_q[graph], panels = (count + PANEL - 1) / PANEL;
    size_t tree_bytes = s->use_tree ? tree_size(panels, s->dim) + aligned(queries * 4) : 0;
    char *memory = malloc(keys_size(count, s->dim, s->screen) + 3 * aligned(count * 4) + tree_bytes + 4 * ALIGN);
    if (!memory) return ENOMEM;
    char *rest = memory;
    int32_t *order = carve(&rest, count * 4), *spare = carve(&rest, count * 4);
    uint32_t *bits = carve(&rest, count * 4);
    Tree tree;
    int failed = 0;
    s->graph = graph;
    s->head = head;
    s->shared_k = s->k + (head * s->num_all_keys + s->ptr_k[graph]) * s->dim;
    s->order_k = s->norm_order || s->use_tree ? order : NULL;
    s->order_q = NULL;
    s->tree = NULL;
    if (s->use_tree) failed = spatial_order(s->shared_k, count, s->dim, PANEL, order, s->num_threads);
    else if (s->norm_order) sort_by_norm(s->shared_k, count, s->dim, order, bits, spare);
    keys_place(&s->shared, count, s->dim, s->screen, rest);
    rest += keys_size(count, s->dim, s->screen);
    if (!failed) run_queue(&s->queue, pack_shared, s, (panels + SUPER - 1) / SUPER, s->num_threads);
    if (s->use_tree && !failed) {
        int32_t *order_q = carve(&rest, queries * 4);
        const real *q = s->q + (head * s->num_queries + s->ptr_q[graph]) * s->dim;
        failed = order_by_direction(q, queries, s->dim, order_q, s->num_threads);
        build_tree(&tree, &s->shared, rest);
        s->order_q = order_q;
        s->tree = &tree;
    }
    if (!failed)
        run_queue(&s->queue, search_shared, s, (queries + GROUP * ROWS - 1) / (GROUP * ROWS), s->num_threads);
    free(memory);
    return failed || s->failed ? ENOMEM : 0;
}

/* The rows of queries that have no key: no thread takes their graphs. */
static void fill_missing(const Search *s) {
    for (long graph = 0; graph < s->graphs; graph++) {
        long first = s->ptr_q[graph], count = s->ptr_q[graph + 1] - first;
        if (keys_of(s, graph) > 0 || count == 0) continue;
        for (long head = 0; head < s->heads; head++) {
            long place = (head * s->num_queries + first) * s->num_keys;
            for (long i = 0; i < count * s->num_keys; i++) s->index[place + i] = -1, s->score[place + i] = -INFINITY;
        }
    }
}

/* Returns 0, or ENOMEM; options: 1 norm order, 2 integer screen, 4 tree (in place of the order); stats (4) may be NULL. */
int kmip_search(const real *q, const real *k, const int64_t *ptr_q, const int64_t *ptr_k, long heads, long num_queries,
                long num_all_keys, long graphs, int dim, int num_keys, int options, int num_threads, int64_t *index,
                real *score, int64_t *stats) {
    int64_t nowhere[4] = {0};
    Search s = {.q = q, .k = k, .ptr_q = ptr_q, .ptr_k = ptr_k, .heads = heads, .num_queries = num_queries,
                .num_all_keys = num_all_keys, .graphs = graphs, .dim = dim, .num_keys = num_keys,
                .norm_order = (options & 5) == 1, .use_tree = (options & 4) != 0, .screen = 0,
                .num_threads = num_threads, .index = index, .score = score,
                .stats = stats ? stats : nowhere, .lock = PTHREAD_MUTEX_INITIALIZER};
#ifdef BYTES
    s.screen = (options & 2) != 0 && dim <= MOST_BYTES_DIM;
#endif
    int failed = 0, small = 0;
    fill_missing(&s);
    for (long graph = 0; graph < graphs; graph++) small |= keys_of(&s, graph) > 0 && keys_of(&s, graph) < SORTED_FROM;
    if (small) {
        run_queue(&s.queue, search_small, &s, graphs * heads, num_threads);
        failed = s.failed;
    }
    for (long graph = 0; graph < graphs && !failed; graph++)
        for (long head = 0; head < heads && !failed; head++)
            if (keys_of(&s, graph) >= SORTED_FROM && ptr_q[graph + 1] > ptr_q[graph]) failed = search_large(&s, graph, head);
    return failed ? ENOMEM : 0;
}

/* The instruction set that this was compiled for, as ops/native/instruction_sets.py names it. */
const char *kmip_search_path(void) { return PATH; }
