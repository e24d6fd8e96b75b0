#include "lab/models.h"

#include <stddef.h>
#include <string.h>

/* Heads as in each model's public config.json, divided by the tensor-parallel degree in the name. */
static const struct model models[] = {
    {"llama3-8b", 32, 8, 128, "Meta-Llama-3-8B config.json"},
    {"llama3-8b-tp2", 16, 4, 128, "the same on 2 GPUs (POD-Attention's setting)"},
    {"llama3-70b-tp4", 16, 2, 128, "Meta-Llama-3-70B config.json (64/8) on 4 GPUs"},
    {"llama3-70b-tp8", 8, 1, 128, "Meta-Llama-3-70B config.json (64/8) on 8 GPUs"},
    {"llama2-7b", 32, 32, 128, "Llama-2-7b config.json (MHA)"},
    {"yi-6b", 32, 4, 128, "Yi-6B config.json"},
    {"mistral-7b", 32, 8, 128, "Mistral-7B-v0.1 config.json"},
    {"qwen2.5-7b", 28, 4, 128, "Qwen2.5-7B config.json (group 7)"},
    {"qwen3-8b", 32, 8, 128, "Qwen3-8B config.json"},
    {"qwen3-32b", 64, 8, 128, "Qwen3-32B config.json"},
    {"qwen3-30b-a3b", 32, 4, 128, "Qwen3-30B-A3B config.json"},
    {"falcon-7b", 71, 1, 64, "falcon-7b config.json (MQA)"},
    {"gemma-7b", 16, 16, 256, "gemma-7b config.json"},
    {"deepseek-v3-prefill-tp8", 16, 16, 192, "DeepSeek-V3 config.json (128 heads) on 8 GPUs, MLA expanded",
     128, false},
    {"deepseek-v3-tp8", 16, 1, 576, "DeepSeek-V3 config.json (128 heads) on 8 GPUs, MLA absorbed", 512, true},
};

int32_t model_count(void)
{
    return (int32_t)(sizeof models / sizeof models[0]);
}

const struct model *model_at(int32_t i)
{
    return &models[i];
}

const struct model *model_find(const char *name)
{
    for (int32_t i = 0; i < model_count(); i++)
        if (strcmp(models[i].name, name) == 0) return &models[i];
    return NULL;
}
