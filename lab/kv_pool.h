/* kv_pool: physical pages of a simulated engine: a free list, and a cache of prompt blocks by hash (least
 * recently used goes first). Plain bookkeeping; no data. */
#ifndef TANDEM_LAB_KV_POOL_H
#define TANDEM_LAB_KV_POOL_H

#include "sched/status.h"

#include <stdbool.h>
#include <stdint.h>

/* A cached block of pages_per_block pages. In the LRU list while nobody holds it. */
struct kv_block {
    int32_t *pages; /* NULL: not cached */
    int32_t holders;
    int32_t newer, older; /* LRU neighbours, -1 at the ends */
};

struct kv_pool {
    int32_t n_pages, pages_per_block;
    int32_t *free_pages; /* a stack */
    int32_t n_free;
    struct kv_block *blocks; /* by hash id */
    int32_t n_blocks;
    int32_t newest, oldest, n_idle; /* idle cached blocks */
};

enum status kv_pool_create(int32_t n_pages, int32_t pages_per_block, int32_t n_blocks, struct kv_pool *out);
void kv_pool_free(struct kv_pool *p);

/* Pages that can be had: free ones, and those of idle blocks. */
int64_t kv_pool_available(const struct kv_pool *p);

/* Takes one page (evicting idle blocks as needed); there must be one. */
int32_t kv_pool_take(struct kv_pool *p);
void kv_pool_give(struct kv_pool *p, int32_t page);

/* Cached blocks: is it there; hold and release it; hand over pages just computed (returns false if the block
 * is cached already, then the caller keeps its pages). A block handed over is held once. */
bool kv_pool_has(const struct kv_pool *p, int32_t hash);
const int32_t *kv_pool_hold(struct kv_pool *p, int32_t hash);
void kv_pool_release(struct kv_pool *p, int32_t hash);
bool kv_pool_insert(struct kv_pool *p, int32_t hash, const int32_t *pages);

#endif
