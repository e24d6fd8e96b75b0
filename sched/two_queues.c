#include "sched/two_queues.h"

#include <math.h>
#include <stdlib.h>

int32_t two_queues_split(int32_t n_workers, double prefill_ns, double decode_ns, double worker_bytes_per_ns,
                         double hbm_bytes_per_ns)
{
    if (decode_ns <= 0) return 0;
    if (prefill_ns <= 0) return n_workers;
    int32_t n = (int32_t)(n_workers * decode_ns / (decode_ns + prefill_ns) + 0.5);
    if (worker_bytes_per_ns > 0 && n * worker_bytes_per_ns > hbm_bytes_per_ns)
        n = (int32_t)ceil(hbm_bytes_per_ns / worker_bytes_per_ns);
    return clamp_i32(n, 1, n_workers - 1);
}

static enum status emit_queue(const struct works_emit *role, const struct batch *b, struct plan *out)
{
    struct works_emit emit = *role;
    int32_t *order = malloc(((size_t)role->works->n + 1) * sizeof *order);
    enum status status = order ? works_longest_first(role->works, order) : STATUS_NO_MEMORY;
    emit.heads_inner = true;
    emit.order = order;
    if (status == STATUS_OK) status = works_emit(&emit, b, out);
    if (status == STATUS_OK) status = plan_end_list(out);
    free(order);
    return status;
}

enum status two_queues_emit(const struct two_queues *q, const struct policy_input *in, struct plan *out)
{
    const int32_t order[4] = {0, q->steal ? 1 : -1, 1, q->steal ? 0 : -1};
    const int32_t n = q->n_workers, sms = in->gpu->sm_count, shift = n > sms ? n - sms : 0;
    int32_t *homes = malloc(((size_t)n + 1) * sizeof *homes);
    if (!homes) return STATUS_NO_MEMORY;
    /* CTA n - sms, the first of the last round, is the first decode; the rounds before follow behind the last
     * CTA */
    for (int32_t w = 0; w < n; w++)
        homes[w] = (w + n - shift) % n < q->n_decode ? WORK_DECODE : WORK_PREFILL;
    enum status status = plan_begin_grid(out, q->grid_kernel, DISPATCH_QUEUE, 0, NULL);
    for (int role = 0; role < 2 && status == STATUS_OK; role++)
        status = emit_queue(&q->roles[role], in->batch, out);
    if (status == STATUS_OK) status = plan_set_home(out, homes, n);
    if (status == STATUS_OK) status = plan_set_steal(out, order, 2);
    if (status == STATUS_OK) status = plan_end_grid(out, n);
    free(homes);
    return status;
}
