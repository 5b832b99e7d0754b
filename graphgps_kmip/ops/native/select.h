/* Numbers with the keys they belong to: selection and sorting. */
#ifndef SELECT_H
#define SELECT_H

#include "simd.h"

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

typedef struct { real value; int32_t id; } Ranked;

/* Hoare's partition: afterwards a[0 .. *last] <= a[*first .. n - 1], and what lies between is equal to the pivot. */
static inline void partition(Ranked *a, long n, long *last, long *first) {
    real x = a[0].value, y = a[n / 2].value, z = a[n - 1].value;
    real pivot = MAX(MIN(x, y), MIN(MAX(x, y), z));
    long i = 0, j = n - 1;
    while (i <= j) {
        while (a[i].value < pivot) i++;
        while (a[j].value > pivot) j--;
        if (i <= j) {
            Ranked spare = a[i];
            a[i++] = a[j];
            a[j--] = spare;
        }
    }
    *last = j;
    *first = i;
}

/* Moves the smaller ones of n numbers before place `middle`. */
static void select_rank(Ranked *a, long n, long middle) {
    while (n > 1) {
        long last, first;
        partition(a, n, &last, &first);
        if (middle <= last) {
            n = last + 1;
        } else if (middle >= first) {
            a += first;
            n -= first;
            middle -= first;
        } else {
            return;
        }
    }
}

/* Sorts n numbers so that they rise. */
static void sort_ranked(Ranked *a, long n) {
    while (n > 16) {
        long last, first;
        partition(a, n, &last, &first);
        if (last + 1 < n - first) { /* the shorter part first: the recursion stays log n deep */
            sort_ranked(a, last + 1);
            a += first;
            n -= first;
        } else {
            sort_ranked(a + first, n - first);
            n = last + 1;
        }
    }
    for (long i = 1; i < n; i++) {
        Ranked one = a[i];
        long j = i;
        for (; j > 0 && a[j - 1].value > one.value; j--) a[j] = a[j - 1];
        a[j] = one;
    }
}

#endif
