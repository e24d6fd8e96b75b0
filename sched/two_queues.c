#include "sched/two_queues.h"

#include "sched/heap.h"

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

/* Is CTA w at home with the decodes? CTA n - sms, the first of the last round, is the first; the rounds
 * before follow behind the last CTA. */
static enum work_role home_of(const struct two_queues *q, const struct policy_input *in, int32_t w)
{
    const int32_t n = q->n_workers, sms = in->gpu->sm_count, shift = n > sms ? n - sms : 0;
    return (w + n - shift) % n < q->n_decode ? WORK_DECODE : WORK_PREFILL;
}

/* A queue while it is drawn from: works in order, each for all its heads. */
struct drawn {
    const struct works *works;
    int32_t *order;
    const double *ns;
    int32_t next, head, n_heads;
};

static double draw(struct drawn *d)
{
    const int32_t i = d->order[d->next];
    const int32_t heads = d->works->data[i].kv_head == WORK_ALL_HEADS ? d->n_heads : 1;
    if (++d->head == heads) {
        d->head = 0;
        d->next++;
    }
    return d->ns[i];
}

static double drain(const struct two_queues *q, const struct policy_input *in, struct drawn queues[2],
                    struct heap_slot *workers)
{
    double makespan = 0;
    heap_reset(workers, q->n_workers);
    for (int32_t live = q->n_workers; live > 0;) {
        enum work_role role = home_of(q, in, workers[0].index);
        if (queues[role].next == queues[role].works->n && q->steal) role = !role;
        if (queues[role].next == queues[role].works->n) {
            workers[0] = workers[--live];
            if (live > 0) heap_sift_root(workers, live);
            continue;
        }
        const double ns = draw(&queues[role]);
        if (workers[0].load + ns > makespan) makespan = workers[0].load + ns;
        heap_add_to_root(workers, live, ns);
    }
    return makespan;
}

enum status two_queues_makespan(const struct two_queues *q, const struct policy_input *in,
                                double *const work_ns[2], double *makespan_ns)
{
    struct drawn queues[2];
    enum status status = STATUS_OK;
    struct heap_slot *workers = malloc(((size_t)q->n_workers + 1) * sizeof *workers);
    if (!workers) status = STATUS_NO_MEMORY;
    for (int role = 0; role < 2; role++) {
        const struct works *works = q->roles[role].works;
        queues[role] = (struct drawn){.works = works,
                                      .order = malloc(((size_t)works->n + 1) * sizeof(int32_t)),
                                      .ns = work_ns[role],
                                      .n_heads = in->batch->shape.num_kv_heads};
        if (!queues[role].order) status = STATUS_NO_MEMORY;
        if (status == STATUS_OK) status = works_longest_first(works, queues[role].order);
    }
    if (status == STATUS_OK) *makespan_ns = drain(q, in, queues, workers);
    free(queues[0].order);
    free(queues[1].order);
    free(workers);
    return status;
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
    const int32_t n = q->n_workers;
    int32_t *homes = malloc(((size_t)n + 1) * sizeof *homes);
    if (!homes) return STATUS_NO_MEMORY;
    for (int32_t w = 0; w < n; w++)
        homes[w] = home_of(q, in, w);
    enum status status = plan_begin_grid(out, q->grid_kernel, DISPATCH_QUEUE, 0, NULL);
    for (int role = 0; role < 2 && status == STATUS_OK; role++)
        status = emit_queue(&q->roles[role], in->batch, out);
    if (status == STATUS_OK) status = plan_set_home(out, homes, n);
    if (status == STATUS_OK) status = plan_set_steal(out, order, 2);
    if (status == STATUS_OK) status = plan_end_grid(out, n);
    free(homes);
    return status;
}
