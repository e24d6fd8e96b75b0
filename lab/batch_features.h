/* batch_features: the members of batch.json beyond lengths, masks and fills: how Q, K, V and O lie in memory, RoPE,
 * scales of K and V, custom masks. */
#ifndef TANDEM_LAB_BATCH_FEATURES_H
#define TANDEM_LAB_BATCH_FEATURES_H

#include "lab/json_read.h"
#include "lab/workload.h"

/* "separate", "interleaved", "ragged", "latent", or "latent_ragged". */
enum status kv_store_from_name(const char *name, struct workload_params *p, struct why *why);
const char *kv_store_name(const struct workload *w);

/* "none", "llama", "interleaved"; ROPE_INTERLEAVED + 1 when unknown. */
int rope_kind_from_name(const char *name);

/* The names of these members, for a list of known ones. */
#define BATCH_FEATURE_KEYS \
    "head_dim_vo", "kv_store", "rope", "q_stride", "o_stride", "k_scale", "v_scale", "custom_mask"

/* Members that shape the batch: head_dim_vo, kv_store, rope, q_stride, o_stride. Absent ones leave *p as it is
 * (head_dim_vo: head_dim). */
enum status features_read_params(const struct json_place *at, const json_t *object, struct workload_params *p,
                                 struct why *why);

/* Members that need lengths and heads: k_scale, v_scale, custom_mask. Call workload_link afterwards. */
enum status features_read_arrays(const struct json_place *at, const json_t *object, struct workload *w,
                                 struct why *why);

/* A number for all of n, or an array of n, into malloc'ed *out; absent or null: unchanged. */
enum status features_read_floats(const struct json_place *at, const json_t *object, const char *member,
                                 int32_t n, float **out, struct why *why);

/* What differs from the defaults, as ", "member": value" each. */
void features_write(const struct workload *w, FILE *file);

#endif
