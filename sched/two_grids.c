#include "sched/two_grids.h"

#include "sched/cost.h"
#include "sched/fi_sm90.h"
#include "sched/fi_split.h"

#include <string.h>

/* Time of a cut by kernel k without looking at placement: the longest work, all works over all slots, the
 * whole SM's pipe, or the bytes over the chip's bandwidth, whichever is longest. */
static double estimate_ns(const struct policy_input *in, const struct works *works, enum kernel_id k)
{
    const struct kernel_fit *fit = &in->kernels->fit[k];
    const double sms = in->gpu->sm_count, heads = in->batch->shape.num_kv_heads;
    double longest = 0, total = 0, flops = 0, bytes = 0;
    if (fit->ctas_per_sm < 1) return 1e300;
    for (int32_t i = 0; i < works->n; i++) {
        const struct work *w = &works->data[i];
        const struct cost c = cost_rect(&in->batch->shape, in->kernels, k, w->row_end - w->row_begin,
                                        w->kv_end - w->kv_begin, w->n_chunks > 1);
        if (c.ns > longest) longest = c.ns;
        total += c.ns * heads;
        flops += c.issued_flops * heads;
        bytes += c.kv_bytes * heads;
    }
    double ns = longest;
    const double bounds[] = {total / (sms * fit->ctas_per_sm), flops / (sms * fit->sm_flops_per_ns),
                             bytes / in->gpu->hbm_bytes_per_ns};
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++)
        if (bounds[i] > ns) ns = bounds[i];
    return ns;
}

/* One way to run a set: a cut and the kernel it is for. */
struct candidate {
    struct works works;
    struct fi_split split;
    enum kernel_id kernel;
};

static enum status cut_fa2(const struct policy_input *in, const struct role_set *set, struct candidate *c)
{
    const int32_t tile_q = fi_prefill_tile(in->batch, set);
    c->kernel = fi_tile_kernel(tile_q);
    c->split = fi_prefill_split(in->batch, in->gpu, set, tile_q, 0);
    return fi_cut(in->batch, set, &c->split, &c->works);
}

static enum status cut_cuda_core(const struct policy_input *in, const struct role_set *set,
                                 struct candidate *c)
{
    c->kernel = KERNEL_FI_DECODE_CC;
    c->split = fi_decode_split(in->batch, in->gpu, set, in->kernels->fit[c->kernel].ctas_per_sm);
    return fi_cut(in->batch, set, &c->split, &c->works);
}

/* Adds the grid of a candidate and, where it split, its merge grid, both on `stream`. */
static enum status add_grids(const struct policy_input *in, const struct candidate *c, int32_t stream,
                             struct plan *out)
{
    const struct works_emit emit = {.works = &c->works, .kernel = c->kernel, .all_partial = c->split.split};
    return works_emit_grids(&emit, stream, in->batch, out);
}

/* The same estimate for the FA3 plan, whose works are tiles of 128 tokens of one q head each, one CTA an SM.
 */
static double estimate_fa3_ns(const struct policy_input *in, const struct role_set *set)
{
    const struct batch *b = in->batch;
    const int32_t tile = kernel_row(KERNEL_FA3_PREFILL_128)->tile_q;
    double longest = 0, total = 0;
    if (in->kernels->fit[KERNEL_FA3_PREFILL_128].ctas_per_sm < 1) return 1e300;
    for (int32_t i = 0; i < set->n; i++) {
        const int32_t request = set->requests[i], qo_len = batch_qo_len(b, request);
        for (int32_t begin = 0; begin < qo_len; begin += tile) {
            const int32_t end = qo_len - begin < tile ? qo_len : begin + tile;
            const struct cost c = cost_rect(&b->shape, in->kernels, KERNEL_FA3_PREFILL_128, end - begin,
                                            batch_visible(b, request, end - 1).end, false);
            if (c.ns > longest) longest = c.ns;
            total += c.ns * b->shape.num_qo_heads;
        }
    }
    return longest > total / in->gpu->sm_count ? longest : total / in->gpu->sm_count;
}

static enum status add_prefill(const struct policy_input *in, const struct role_set *set, const char *choice,
                               struct plan *out)
{
    struct candidate fa2 = {0};
    if (strcmp(choice, "fa3") == 0) return fi_sm90_grid(in, set, 0, out);
    enum status status = cut_fa2(in, set, &fa2);
    const bool use_fa3 = strcmp(choice, "auto") == 0 && status == STATUS_OK &&
                         estimate_fa3_ns(in, set) <= estimate_ns(in, &fa2.works, fa2.kernel);
    if (status == STATUS_OK) status = use_fa3 ? fi_sm90_grid(in, set, 0, out) : add_grids(in, &fa2, 0, out);
    works_free(&fa2.works);
    return status;
}

static enum status add_decode(const struct policy_input *in, const struct role_set *set, const char *choice,
                              int32_t stream, struct plan *out, struct why *why)
{
    const int32_t group_size = batch_group_size(in->batch);
    const bool takes =
        two_grids_cuda_core_takes(group_size) && in->kernels->fit[KERNEL_FI_DECODE_CC].ctas_per_sm > 0;
    struct candidate tensor = {0}, cuda_core = {0};
    if (strcmp(choice, "cuda_core") == 0 && !takes)
        return status_fail(why, STATUS_UNSUPPORTED,
                           "decode=cuda_core: GQA group %d: expected 1, 2, 3, 4, 6 or 8", group_size);
    enum status status = cut_fa2(in, set, &tensor);
    if (status == STATUS_OK && takes) status = cut_cuda_core(in, set, &cuda_core);
    if (status == STATUS_OK) {
        bool use_cuda_core = strcmp(choice, "cuda_core") == 0;
        if (strcmp(choice, "auto") == 0 && takes)
            use_cuda_core = estimate_ns(in, &cuda_core.works, cuda_core.kernel) <
                            estimate_ns(in, &tensor.works, tensor.kernel);
        status = add_grids(in, use_cuda_core ? &cuda_core : &tensor, stream, out);
    }
    works_free(&tensor.works);
    works_free(&cuda_core.works);
    return status;
}

enum status two_grids_plan(const struct policy_input *in, struct two_grids_launch launch, struct plan *out,
                           struct why *why)
{
    struct role_set prefill, decode;
    enum status status = STATUS_OK;
    TRY(role_sets(in->batch, &prefill, &decode));
    for (int step = 0; step < 2 && status == STATUS_OK; step++) {
        const bool decode_now = (step == 0) == launch.decode_first;
        if (decode_now && decode.n)
            status = add_decode(in, &decode, launch.decode, launch.decode_stream, out, why);
        else if (!decode_now && prefill.n)
            status = add_prefill(in, &prefill, launch.prefill, out);
    }
    role_set_free(&prefill);
    role_set_free(&decode);
    return status;
}
