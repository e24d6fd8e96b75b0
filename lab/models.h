/* models: head shapes of public models, as presets for --model. */
#ifndef TANDEM_LAB_MODELS_H
#define TANDEM_LAB_MODELS_H

#include <stdbool.h>
#include <stdint.h>

struct model {
    const char *name;
    int32_t num_qo_heads, num_kv_heads, head_dim; /* on one GPU, after tensor parallelism */
    const char *source;
    int32_t head_dim_vo; /* 0: head_dim */
    bool kv_latent;
};

int32_t model_count(void);
const struct model *model_at(int32_t i);
const struct model *model_find(const char *name);

#endif
