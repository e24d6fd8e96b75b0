#include "sched/fi_pod.h"

#include <string.h>

enum { DECODE_TILE = 16, MAX_ROWS_COLOCATED = 1536 };

void fi_pod_free(struct fi_pod *p)
{
    works_free(&p->prefill);
    works_free(&p->decode);
    memset(p, 0, sizeof *p);
}

static enum kernel_id fused_kernel(const struct fi_pod *p)
{
    if (p->decode.n == 0) return p->prefill_kernel;
    if (p->prefill.n == 0) return KERNEL_FA2_DECODE_16;
    return p->prefill_kernel == KERNEL_FA2_PREFILL_128 ? KERNEL_FUSED_128_16 : KERNEL_FUSED_64_16;
}

static enum status cut_sets(const struct policy_input *in, const struct role_set *prefill,
                            const struct role_set *decode, struct fi_pod *out)
{
    const struct batch *b = in->batch;
    /* There is no fused 16 + 16 row: prefill chunks so short that tile 16 would do take 64. */
    const int32_t tile_q = fi_prefill_tile(b, prefill) == 128 ? 128 : 64;
    out->prefill_kernel = fi_tile_kernel(tile_q);
    out->decode_split = fi_prefill_split(b, in->gpu, decode, DECODE_TILE, 0);
    const int64_t colocated = prefill->rows > MAX_ROWS_COLOCATED ? 0 : out->decode_split.n_works;
    out->prefill_split = fi_prefill_split(b, in->gpu, prefill, tile_q, colocated);
    TRY(fi_cut(b, decode, &out->decode_split, &out->decode));
    TRY(fi_cut(b, prefill, &out->prefill_split, &out->prefill));
    out->grid_kernel = fused_kernel(out);
    return STATUS_OK;
}

enum status fi_pod_cut(const struct policy_input *in, struct fi_pod *out)
{
    struct role_set prefill, decode;
    memset(out, 0, sizeof *out);
    TRY(role_sets(in->batch, &prefill, &decode));
    const enum status status = cut_sets(in, &prefill, &decode, out);
    role_set_free(&prefill);
    role_set_free(&decode);
    return status;
}

enum status fi_pod_plan(const struct policy_input *in, struct plan *out,
                        enum status (*add_grids)(const struct policy_input *in, const struct fi_pod *pod,
                                                 struct plan *out))
{
    struct fi_pod pod;
    enum status status = fi_pod_cut(in, &pod);
    if (status == STATUS_OK && pod.prefill.n + pod.decode.n > 0) status = add_grids(in, &pod, out);
    fi_pod_free(&pod);
    return status;
}

enum status fi_pod_emit(const struct fi_pod *pod, enum work_role role, bool list_per_item,
                        const struct batch *b, struct plan *out)
{
    const bool prefill = role == WORK_PREFILL;
    const struct works_emit emit = {.works = prefill ? &pod->prefill : &pod->decode,
                                    .kernel = prefill ? pod->prefill_kernel : KERNEL_FA2_DECODE_16,
                                    .all_partial = (prefill ? pod->prefill_split : pod->decode_split).split,
                                    .list_per_item = list_per_item};
    return works_emit(&emit, b, out);
}
