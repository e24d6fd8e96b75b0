#include "sched/cascade.h"

#include <stdlib.h>
#include <string.h>

/* Branchings on a path; bounds the time on page tables made to be deep. */
enum { MAX_DEPTH = 16 };

/* A candidate: its shareable pages (whole, before its new tokens), and the page that sorting goes by. */
struct entry {
    const int32_t *pages;
    int32_t n_pages, request;
    int32_t sort_page;
};

/* Members [begin, end) of the entries hold the same pages up to `depth`; nodes cover keys up to `covered`. */
struct job {
    int32_t begin, end;
    int32_t depth, covered; /* pages */
    int32_t parent;
    int32_t level; /* branchings above */
};

struct finder {
    const struct batch *b;
    int32_t min_keys;
    struct entry *entries;
    struct job *jobs; /* a stack */
    int32_t n_jobs, cap_jobs;
    struct cascade *out;
};

static int compare_entries(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;
    if (a->sort_page != b->sort_page) return a->sort_page < b->sort_page ? -1 : 1;
    return a->request < b->request ? -1 : a->request > b->request;
}

static enum status push_job(struct finder *f, struct job job)
{
    if (f->n_jobs == f->cap_jobs) {
        const int32_t cap = f->cap_jobs ? f->cap_jobs * 2 : 64;
        struct job *jobs = realloc(f->jobs, (size_t)cap * sizeof *jobs);
        if (!jobs) return STATUS_NO_MEMORY;
        f->jobs = jobs;
        f->cap_jobs = cap;
    }
    f->jobs[f->n_jobs++] = job;
    return STATUS_OK;
}

static enum status push_node(struct cascade *c, struct cascade_node node)
{
    if (c->n_nodes == c->cap_nodes) {
        const int32_t cap = c->cap_nodes ? c->cap_nodes * 2 : 16;
        struct cascade_node *nodes = realloc(c->nodes, (size_t)cap * sizeof *nodes);
        if (!nodes) return STATUS_NO_MEMORY;
        c->nodes = nodes;
        c->cap_nodes = cap;
    }
    c->nodes[c->n_nodes++] = node;
    return STATUS_OK;
}

/* Pages that all of the job's members share, at least job->depth. */
static int32_t common_pages(const struct finder *f, const struct job *job)
{
    const struct entry *first = &f->entries[job->begin];
    int32_t common = first->n_pages;
    for (int32_t i = job->begin + 1; i < job->end; i++) {
        const struct entry *e = &f->entries[i];
        int32_t p = job->depth;
        if (e->n_pages < common) common = e->n_pages;
        while (p < common && e->pages[p] == first->pages[p])
            p++;
        common = p;
    }
    return common;
}

/* Sorts the members by their page at `depth`, those without one last, and pushes every run of at least two.
 */
static enum status push_runs(struct finder *f, const struct job *job, struct job child)
{
    for (int32_t i = job->begin; i < job->end; i++)
        f->entries[i].sort_page =
            f->entries[i].n_pages > child.depth ? f->entries[i].pages[child.depth] : INT32_MAX;
    qsort(f->entries + job->begin, (size_t)(job->end - job->begin), sizeof *f->entries, compare_entries);
    for (int32_t i = job->begin, end; i < job->end; i = end) {
        for (end = i + 1; end < job->end && f->entries[end].sort_page == f->entries[i].sort_page;)
            end++;
        if (end - i < 2 || f->entries[i].sort_page == INT32_MAX) continue;
        child.begin = i;
        child.end = end;
        TRY(push_job(f, child));
    }
    return STATUS_OK;
}

/* Makes the job's common pages a node where they are worth one, and goes on below. */
static enum status run_job(struct finder *f, const struct job *job)
{
    const int64_t page_size = f->b->kv.page_size;
    struct job child = *job;
    child.depth = common_pages(f, job);
    child.level++;
    const int64_t keys = (child.depth - job->covered) * page_size;
    if (keys >= f->min_keys && keys > 0) {
        const struct cascade_node node = {
            {(int32_t)(job->covered * page_size), (int32_t)(child.depth * page_size)},
            job->parent,
            job->begin,
            job->end};
        child.parent = f->out->n_nodes;
        child.covered = child.depth;
        TRY(push_node(f->out, node));
    }
    return child.level < MAX_DEPTH ? push_runs(f, job, child) : STATUS_OK;
}

/* A deeper node comes later than its parent, so the last one to name a request is its deepest. */
static void note_leaves(struct finder *f)
{
    struct cascade *c = f->out;
    c->tokens_before[0] = 0;
    for (int32_t i = 0; i < c->n_requests; i++) {
        c->requests[i] = f->entries[i].request;
        c->position[c->requests[i]] = i;
        c->tokens_before[i + 1] = c->tokens_before[i] + batch_qo_len(f->b, c->requests[i]);
    }
    for (int32_t n = 0; n < c->n_nodes; n++)
        for (int32_t i = c->nodes[n].member_begin; i < c->nodes[n].member_end; i++)
            c->leaf[c->requests[i]] = n;
}

static enum status find(struct finder *f, int32_t max_rows)
{
    const struct batch *b = f->b;
    const int32_t group_size = batch_group_size(b);
    int32_t n = 0;
    for (int32_t r = 0; r < b->n_requests; r++) {
        const int64_t rows = (int64_t)batch_qo_len(b, r) * group_size;
        const int32_t before = b->kv_len[r] - batch_qo_len(b, r);
        f->out->leaf[r] = -1;
        if (rows < 1 || rows > max_rows || before < b->kv.page_size) continue;
        f->entries[n++] =
            (struct entry){b->kv.kv_indices + b->kv.kv_indptr[r], before / b->kv.page_size, r, 0};
    }
    f->out->n_requests = n;
    if (n < 2) return STATUS_OK;
    /* the root holds all candidates and shares nothing yet */
    TRY(push_runs(f, &(struct job){0, n, 0, 0, -1, 0}, (struct job){0, 0, 0, 0, -1, 0}));
    while (f->n_jobs > 0) {
        const struct job job = f->jobs[--f->n_jobs];
        TRY(run_job(f, &job));
    }
    note_leaves(f);
    return STATUS_OK;
}

enum status cascade_find(const struct batch *b, int32_t max_rows, int32_t min_keys, struct cascade *out)
{
    struct finder f = {.b = b, .min_keys = min_keys, .out = out};
    const size_t n = (size_t)b->n_requests + 1;
    memset(out, 0, sizeof *out);
    if (b->mask.window_left >= 0) return STATUS_OK;
    f.entries = malloc(n * sizeof *f.entries);
    out->requests = malloc(n * sizeof *out->requests);
    out->position = malloc(n * sizeof *out->position);
    out->tokens_before = malloc(n * sizeof *out->tokens_before);
    out->leaf = malloc(n * sizeof *out->leaf);
    const bool ok = f.entries && out->requests && out->position && out->tokens_before && out->leaf;
    enum status status = ok ? find(&f, max_rows) : STATUS_NO_MEMORY;
    free(f.entries);
    free(f.jobs);
    if (status != STATUS_OK || out->n_nodes == 0) cascade_free(out);
    return status;
}

void cascade_free(struct cascade *c)
{
    free(c->nodes);
    free(c->requests);
    free(c->position);
    free(c->tokens_before);
    free(c->leaf);
    memset(c, 0, sizeof *c);
}
