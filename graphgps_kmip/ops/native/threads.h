/* Threads and memory of a kernel: a queue of items, a function on several threads, one block cut into aligned arrays. */
#ifndef THREADS_H
#define THREADS_H

#include <pthread.h>
#include <stdatomic.h>
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

#define MAX_THREADS 256

typedef struct {
    atomic_long next; /* first item that no thread has taken */
    long items;
} Queue;

/* Takes the next `step` items: returns the first, and in *end where they end; the first is >= *end when all is done. */
static inline long take(Queue *queue, long step, long *end) {
    long first = atomic_fetch_add_explicit(&queue->next, step, memory_order_relaxed);
    *end = first + step < queue->items ? first + step : queue->items;
    return first;
}

typedef struct {
    void *(*work)(void *);
    void *argument;
} Job;

#ifdef __linux__ /* the entry point of GCC's runtime, which Intel's and LLVM's have too */
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));

static void run_job(void *job) { ((Job *)job)->work(((Job *)job)->argument); }
#endif

/* Runs a function on several threads: those of torch's OpenMP team where the process has one, else fresh ones. A second
 * team would fight with the first, whose threads wait in a busy loop of some milliseconds after each loop of torch (half
 * the speed, measured at N = 10^4). Its entry point is looked up when the library is loaded; no OpenMP is linked. */
static void run_parallel(void *(*work)(void *), void *argument, int num_threads) {
    pthread_t threads[MAX_THREADS];
    int started = 0;
    if (num_threads > MAX_THREADS) num_threads = MAX_THREADS;
#ifdef __linux__
    if (num_threads > 1 && GOMP_parallel) {
        Job job = {work, argument};
        GOMP_parallel(run_job, &job, (unsigned)num_threads, 0);
        return;
    }
#endif
    /* a thread that cannot be made leaves its share of the queue to the others */
    while (started < num_threads - 1 && pthread_create(&threads[started], NULL, work, argument) == 0) started++;
    work(argument);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

/* Runs a function on several threads, which take the items of its queue. */
static inline void run_queue(Queue *queue, void *(*work)(void *), void *argument, long items, int num_threads) {
    atomic_store(&queue->next, 0);
    queue->items = items;
    run_parallel(work, argument, num_threads);
}

#endif
