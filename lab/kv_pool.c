#include "lab/kv_pool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum status kv_pool_create(int32_t n_pages, int32_t pages_per_block, int32_t n_blocks, struct kv_pool *out)
{
    *out = (struct kv_pool){.n_pages = n_pages,
                            .pages_per_block = pages_per_block,
                            .n_blocks = n_blocks,
                            .newest = -1,
                            .oldest = -1};
    out->free_pages = malloc(((size_t)n_pages + 1) * sizeof *out->free_pages);
    out->blocks = calloc((size_t)n_blocks + 1, sizeof *out->blocks);
    if (!out->free_pages || !out->blocks) {
        kv_pool_free(out);
        return STATUS_NO_MEMORY;
    }
    for (int32_t i = 0; i < n_pages; i++)
        out->free_pages[i] = n_pages - 1 - i; /* low ids first */
    out->n_free = n_pages;
    return STATUS_OK;
}

void kv_pool_free(struct kv_pool *p)
{
    for (int32_t i = 0; p->blocks && i < p->n_blocks; i++)
        free(p->blocks[i].pages);
    free(p->blocks);
    free(p->free_pages);
    memset(p, 0, sizeof *p);
}

static void unlink_idle(struct kv_pool *p, int32_t hash)
{
    struct kv_block *b = &p->blocks[hash];
    if (b->newer >= 0)
        p->blocks[b->newer].older = b->older;
    else
        p->newest = b->older;
    if (b->older >= 0)
        p->blocks[b->older].newer = b->newer;
    else
        p->oldest = b->newer;
    p->n_idle--;
}

static void link_idle(struct kv_pool *p, int32_t hash)
{
    struct kv_block *b = &p->blocks[hash];
    b->newer = -1;
    b->older = p->newest;
    if (p->newest >= 0) p->blocks[p->newest].newer = hash;
    p->newest = hash;
    if (p->oldest < 0) p->oldest = hash;
    p->n_idle++;
}

static void evict_oldest(struct kv_pool *p)
{
    const int32_t hash = p->oldest;
    struct kv_block *b = &p->blocks[hash];
    unlink_idle(p, hash);
    for (int32_t i = 0; i < p->pages_per_block; i++)
        kv_pool_give(p, b->pages[i]);
    free(b->pages);
    b->pages = NULL;
}

int64_t kv_pool_available(const struct kv_pool *p)
{
    return (int64_t)p->n_free + (int64_t)p->n_idle * p->pages_per_block;
}

int32_t kv_pool_take(struct kv_pool *p)
{
    if (p->n_free == 0) {
        assert(p->n_idle > 0);
        evict_oldest(p);
    }
    return p->free_pages[--p->n_free];
}

void kv_pool_give(struct kv_pool *p, int32_t page)
{
    p->free_pages[p->n_free++] = page;
}

bool kv_pool_has(const struct kv_pool *p, int32_t hash)
{
    return hash < p->n_blocks && p->blocks[hash].pages;
}

const int32_t *kv_pool_hold(struct kv_pool *p, int32_t hash)
{
    struct kv_block *b = &p->blocks[hash];
    if (b->holders++ == 0) unlink_idle(p, hash);
    return b->pages;
}

void kv_pool_release(struct kv_pool *p, int32_t hash)
{
    if (--p->blocks[hash].holders == 0) link_idle(p, hash);
}

bool kv_pool_insert(struct kv_pool *p, int32_t hash, const int32_t *pages)
{
    if (hash >= p->n_blocks || p->blocks[hash].pages) return false;
    int32_t *copy = malloc((size_t)p->pages_per_block * sizeof *copy);
    if (!copy) return false; /* not cached: only sharing is lost */
    memcpy(copy, pages, (size_t)p->pages_per_block * sizeof *copy);
    p->blocks[hash] = (struct kv_block){copy, 1, -1, -1};
    return true;
}
