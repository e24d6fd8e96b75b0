#include "ref/oracle.h"

#include "ref/double_block.h"

#include <stdlib.h>
#include <string.h>

/* A task is TOKENS query tokens of one request under one kv head: all its q heads' rows share the K and V that
 * are loaded. */
enum { TOKENS = 16 };

/* Sums over exp(s - max) become sums over p. A sink's weight has no value and no error of its own. */
static struct row_sums normalised(struct row_sums s, double max, double lse)
{
    const double scale = lse == -INFINITY ? 0 : exp(max - lse);
    s.value *= scale;
    s.value_sq *= scale * scale;
    s.value_error *= scale;
    s.error *= scale;
    s.max = max == -INFINITY ? lse : max;
    return s;
}

static void run_task(const struct batch *b, int32_t request, int32_t kv_head, int32_t token, int32_t n_tokens,
                     struct double_block *x, struct row_ref *rows, struct oracle_result *out)
{
    const int32_t group = batch_group_size(b), n = n_tokens * group;
    const size_t dv = (size_t)b->shape.head_dim_vo;
    for (int32_t i = 0; i < n; i++)
        rows[i] = (struct row_ref){request, token + i / group, kv_head * group + i % group};
    const struct range keys = double_block_begin(x, rows, n, 0, b->kv_len[request]);
    double_block_attend(x, request, kv_head, keys.begin, keys.end);
    for (int32_t i = 0; i < n; i++) {
        const double sink = b->mask.sink ? b->mask.sink[rows[i].qo_head] : 0;
        const size_t row = batch_row(b, rows[i]);
        out->lse[row] = double_block_finish(x, i, b->mask.sink ? &sink : NULL, out->o + row * dv);
        out->sums[row] = normalised(x->sums[i], x->max[i], out->lse[row]);
    }
}

/* Tasks of request r start at task_indptr[r]: heads x blocks of TOKENS tokens. */
static int32_t find_request(const int64_t *task_indptr, int32_t n, int64_t task)
{
    int32_t low = 0, high = n;
    while (high - low > 1) {
        const int32_t middle = low + (high - low) / 2;
        if (task_indptr[middle] <= task)
            low = middle;
        else
            high = middle;
    }
    return low;
}

enum status oracle_run(const struct batch *b, const struct tensors *t, struct oracle_result *out,
                       struct why *why)
{
    const int32_t heads = b->shape.num_kv_heads;
    bool ok = true;
    int64_t *indptr = malloc(((size_t)b->n_requests + 1) * sizeof *indptr);
    if (!indptr) return status_fail(why, STATUS_NO_MEMORY, "oracle: out of memory");
    indptr[0] = 0;
    for (int32_t r = 0; r < b->n_requests; r++)
        indptr[r + 1] = indptr[r] + (int64_t)heads * ((batch_qo_len(b, r) + TOKENS - 1) / TOKENS);
#pragma omp parallel reduction(&& : ok)
    {
        struct double_block x = {0};
        struct row_ref *rows = malloc((size_t)TOKENS * (size_t)batch_group_size(b) * sizeof *rows);
        ok = double_block_create(b, t, TOKENS * batch_group_size(b), &x) && rows;
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < indptr[b->n_requests]; task++) {
            if (!ok) continue;
            const int32_t r = find_request(indptr, b->n_requests, task);
            const int32_t head = (int32_t)((task - indptr[r]) % heads),
                          block = (int32_t)((task - indptr[r]) / heads);
            const int32_t token = block * TOKENS, left = batch_qo_len(b, r) - token;
            run_task(b, r, head, token, left < TOKENS ? left : TOKENS, &x, rows, out);
        }
        double_block_free(&x);
        free(rows);
    }
    free(indptr);
    return ok ? STATUS_OK : status_fail(why, STATUS_NO_MEMORY, "oracle: out of memory");
}
