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

/* Rows of one request and kv head into places [0, n) of `at` of the result. */
static void run_rows(const struct batch *b, const struct row_ref *rows, int32_t n, const size_t *at,
                     struct double_block *x, struct oracle_result *out)
{
    const size_t dv = (size_t)b->shape.head_dim_vo;
    const int32_t request = rows[0].request, kv_head = rows[0].qo_head / batch_group_size(b);
    const struct range keys = double_block_begin(x, rows, n, 0, b->kv_len[request]);
    double_block_attend(x, request, kv_head, keys.begin, keys.end);
    for (int32_t i = 0; i < n; i++) {
        const double sink = b->mask.sink ? b->mask.sink[rows[i].qo_head] : 0;
        const size_t row = at[i];
        out->lse[row] = double_block_finish(x, i, b->mask.sink ? &sink : NULL, out->o + row * dv);
        out->sums[row] = normalised(x->sums[i], x->max[i], out->lse[row]);
    }
}

static void run_task(const struct batch *b, int32_t request, int32_t kv_head, int32_t token, int32_t n_tokens,
                     struct double_block *x, struct row_ref *rows, size_t *at, struct oracle_result *out)
{
    const int32_t group = batch_group_size(b), n = n_tokens * group;
    for (int32_t i = 0; i < n; i++) {
        rows[i] = (struct row_ref){request, token + i / group, kv_head * group + i % group};
        at[i] = batch_row(b, rows[i]);
    }
    run_rows(b, rows, n, at, x, out);
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
        const size_t most = (size_t)TOKENS * (size_t)batch_group_size(b);
        struct row_ref *rows = malloc(most * sizeof *rows);
        size_t *at = malloc(most * sizeof *at);
        ok = double_block_create(b, t, TOKENS * batch_group_size(b), &x) && rows && at;
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < indptr[b->n_requests]; task++) {
            if (!ok) continue;
            const int32_t r = find_request(indptr, b->n_requests, task);
            const int32_t head = (int32_t)((task - indptr[r]) % heads),
                          block = (int32_t)((task - indptr[r]) / heads);
            const int32_t token = block * TOKENS, left = batch_qo_len(b, r) - token;
            run_task(b, r, head, token, left < TOKENS ? left : TOKENS, &x, rows, at, out);
        }
        double_block_free(&x);
        free(rows);
        free(at);
    }
    free(indptr);
    return ok ? STATUS_OK : status_fail(why, STATUS_NO_MEMORY, "oracle: out of memory");
}

enum status oracle_run_rows(const struct batch *b, const struct tensors *t, const struct row_ref *rows,
                            int32_t n, struct oracle_result *out, struct why *why)
{
    bool ok = true;
#pragma omp parallel reduction(&& : ok)
    {
        struct double_block x = {0};
        ok = double_block_create(b, t, 1, &x);
#pragma omp for schedule(dynamic)
        for (int32_t i = 0; i < n; i++) {
            const size_t at = (size_t)i;
            if (ok) run_rows(b, &rows[i], 1, &at, &x, out);
        }
        double_block_free(&x);
    }
    return ok ? STATUS_OK : status_fail(why, STATUS_NO_MEMORY, "oracle: out of memory");
}
