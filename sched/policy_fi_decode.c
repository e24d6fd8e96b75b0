/* fi_decode: FlashInfer's decode wrapper on CUDA cores, with its own split.
 *
 * Source: flashinfer scheduler.cuh at fb28d7242, the decode plan by binary search over the pages of a chunk.
 * Rule: max_grid = occupancy x SMs. With requests x kv heads >= max_grid nothing is split, however skewed the
 * lengths; else the smallest chunk of at least 128 tokens (whole pages) whose works fit max_grid, the same
 * for all requests. Once anything splits, every work writes partials and a merge kernel follows.
 *
 * The wrapper takes one query row a request and GQA groups 1, 2, 3, 4, 6 and 8. As in engines, prefills of
 * the batch go to the batched prefill wrapper (FA2 plan) in a grid before, and other groups to the
 * tensor-core decode, which is that same plan. */
#include "sched/two_grids.h"

static enum status plan_fi_decode(const struct policy_input *in, struct plan *out, struct why *why)
{
    const bool takes = two_grids_cuda_core_takes(batch_group_size(in->batch)) &&
                       in->kernels->fit[KERNEL_FI_DECODE_CC].ctas_per_sm > 0;
    return two_grids_plan(
        in, (struct two_grids_launch){.prefill = "fa2", .decode = takes ? "cuda_core" : "tensor_core"}, out,
        why);
}

const struct policy policy_fi_decode = {
    .name = "fi_decode",
    .brief = "CUDA-core decode split by one global chunk; prefills by the FA2 plan before it",
    .source = "FlashInfer scheduler.cuh at fb28d7242, decode plan",
    .plan = plan_fi_decode,
};
