/* heap: slots (CTAs, workers) by load, for list scheduling. A binary min-heap over a caller's array; ties go
 * to the lower index, so that schedules are deterministic. */
#ifndef TANDEM_SCHED_HEAP_H
#define TANDEM_SCHED_HEAP_H

#include <stdbool.h>
#include <stdint.h>

struct heap_slot {
    double load;
    int32_t index;
};

static inline bool heap_before(struct heap_slot a, struct heap_slot b)
{
    return a.load < b.load || (a.load == b.load && a.index < b.index);
}

/* n empty slots, 0 .. n - 1. */
static inline void heap_reset(struct heap_slot *heap, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        heap[i] = (struct heap_slot){0, i};
}

/* Puts the root back in order among the first n after it changed. */
static inline void heap_sift_root(struct heap_slot *heap, int32_t n)
{
    const struct heap_slot moved = heap[0];
    int32_t i = 0;
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && heap_before(heap[child + 1], heap[child])) child++;
        if (!heap_before(heap[child], moved)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moved;
}

/* Gives work to the least loaded slot (the root) and restores the order. */
static inline void heap_add_to_root(struct heap_slot *heap, int32_t n, double work)
{
    heap[0].load += work;
    heap_sift_root(heap, n);
}

#endif
