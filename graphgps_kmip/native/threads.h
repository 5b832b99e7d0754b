/* Runs a function on several threads: threads are made for each call (20 us each), so that none spins or outlives a
 * fork, and no second OpenMP runtime stands beside torch's. */
#ifndef THREADS_H
#define THREADS_H

#include <pthread.h>
#include <stdatomic.h>

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

static void run_parallel(void *(*work)(void *), void *argument, int num_threads) {
    pthread_t threads[MAX_THREADS];
    int started = 0;
    if (num_threads > MAX_THREADS) num_threads = MAX_THREADS;
    /* a thread that cannot be made leaves its share of the queue to the others */
    while (started < num_threads - 1 && pthread_create(&threads[started], NULL, work, argument) == 0) started++;
    work(argument);
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
}

#endif
