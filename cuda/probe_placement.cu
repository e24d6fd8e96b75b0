/* Where CTAs go: the GPC map by clusters, the first wave, and what a change of CTAs costs. */
#include "cuda/probe_internal.h"

#include <stdlib.h>
#include <string.h>

struct probe_cta {
    uint64_t begin_ns, end_ns;
    uint32_t sm, cluster;
};

enum { MAX_CTAS = 1 << 14 };

static __device__ uint64_t clock_ns(void)
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* Notes where and when, and stays for `cycles` of the SM's clock. */
__global__ void probe_stay(struct probe_cta *out, long long cycles)
{
    uint32_t sm, cluster;
    if (threadIdx.x != 0) return;
    const uint64_t begin = clock_ns();
    const long long start = clock64();
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
#if __CUDA_ARCH__ >= 900
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
#else
    cluster = blockIdx.x;
#endif
    while (clock64() - start < cycles)
        ;
    out[blockIdx.x] = {begin, clock_ns(), sm, cluster};
}

static enum status launch(struct probe_bench *b, int32_t ctas, int32_t cluster, int32_t smem_bytes, long long cycles,
                          struct probe_cta *out, struct why *why)
{
    cudaLaunchConfig_t c;
    cudaLaunchAttribute attribute[1];
    memset(&c, 0, sizeof c);
    memset(attribute, 0, sizeof attribute);
    CUDA_TRY(cudaFuncSetAttribute(probe_stay, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  (int)b->d->properties.sharedMemPerBlockOptin));
    c.gridDim = dim3((unsigned)ctas);
    c.blockDim = dim3(128);
    c.dynamicSmemBytes = (size_t)smem_bytes;
    c.stream = b->stream;
    if (cluster > 1) {
        CUDA_TRY(cudaFuncSetAttribute(probe_stay, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
        attribute[0].id = cudaLaunchAttributeClusterDimension;
        attribute[0].val.clusterDim.x = (unsigned)cluster;
        attribute[0].val.clusterDim.y = attribute[0].val.clusterDim.z = 1;
        c.attrs = attribute;
        c.numAttrs = 1;
    }
    CUDA_TRY(cudaLaunchKernelEx(&c, probe_stay, out, cycles));
    return STATUS_OK;
}

/* CTAs of one launch on the host. */
static enum status look(struct probe_bench *b, int32_t ctas, int32_t cluster, int32_t smem_bytes, long long cycles,
                        struct probe_cta *host, struct why *why)
{
    TRY(launch(b, ctas, cluster, smem_bytes, cycles, (struct probe_cta *)b->sink, why));
    CUDA_TRY(cudaStreamSynchronize(b->stream));
    CUDA_TRY(cudaMemcpy(host, b->sink, (size_t)ctas * sizeof *host, cudaMemcpyDeviceToHost));
    return STATUS_OK;
}

/* ---- GPCs -------------------------------------------------------------------------------------------------------- */

static int32_t root_of(int32_t *parent, int32_t i)
{
    while (parent[i] != i)
        i = parent[i] = parent[parent[i]];
    return i;
}

static int by_size(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* SMs that ever shared a cluster are of one GPC; sizes from 16 down, a few launches each, link all of its SMs. */
static enum status map_gpcs(struct probe_bench *b, struct probe_cta *host, struct probe *out, struct why *why)
{
    int32_t parent[PROBE_SMS], size[PROBE_SMS] = {0};
    const int32_t whole = (int32_t)b->d->properties.sharedMemPerBlockOptin;
    if (b->d->properties.major < 9) return STATUS_OK;
    for (int32_t i = 0; i < PROBE_SMS; i++)
        parent[i] = i;
    for (int32_t cluster = 16; cluster >= 2; cluster--)
        for (int32_t round = 0; round < 4; round++) {
            const int32_t ctas = 4 * b->sms / cluster * cluster;
            if (look(b, ctas, cluster, whole, 20000, host, why) != STATUS_OK) {
                cudaGetLastError(); /* this size does not fit this GPU */
                break;
            }
            for (int32_t i = 1; i < ctas; i++)
                if (host[i].cluster == host[i - 1].cluster && host[i].sm < PROBE_SMS && host[i - 1].sm < PROBE_SMS)
                    parent[root_of(parent, (int32_t)host[i].sm)] = root_of(parent, (int32_t)host[i - 1].sm);
        }
    for (int32_t i = 0; i < b->sms && i < PROBE_SMS; i++)
        size[root_of(parent, i)]++;
    for (int32_t i = 0; i < PROBE_SMS; i++)
        if (size[i] > 0 && out->n_gpcs < PROBE_GPCS) out->gpc_sms[out->n_gpcs++] = size[i];
    qsort(out->gpc_sms, (size_t)out->n_gpcs, sizeof *out->gpc_sms, by_size);
    return STATUS_OK;
}

/* ---- the first wave, and the next CTA ------------------------------------------------------------------------------ */

static enum status first_wave_once(struct probe_bench *b, const void *args, double *value, struct why *why)
{
    struct probe_cta *host = (struct probe_cta *)args;
    uint64_t first = UINT64_MAX, last = 0;
    TRY(look(b, b->sms, 1, (int32_t)b->d->properties.sharedMemPerBlockOptin, 100000, host, why));
    for (int32_t i = 0; i < b->sms; i++) {
        if (host[i].begin_ns < first) first = host[i].begin_ns;
        if (host[i].begin_ns > last) last = host[i].begin_ns;
    }
    *value = (double)(last - first) + 1; /* the timer may tick coarsely */
    return STATUS_OK;
}

/* A grid of `waves` CTAs for each place, each staying the same number of cycles: what a wave takes beyond the stay. */
struct turnaround {
    struct probe_cta *host;
    int32_t smem_bytes;
};

static enum status turnaround_once(struct probe_bench *b, const void *args, double *value, struct why *why)
{
    const struct turnaround *t = (const struct turnaround *)args;
    const long long cycles = 6000;
    int fits = 0;
    double ns[2], stay = 0;
    CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&fits, probe_stay, 128, (size_t)t->smem_bytes));
    const int32_t places = fits * b->sms, waves = MAX_CTAS / places / 2;
    for (int k = 0; k < 2; k++) {
        TRY(probe_begin(b, why));
        TRY(launch(b, (k + 1) * waves * places, 1, t->smem_bytes, cycles, (struct probe_cta *)b->sink, why));
        TRY(probe_end(b, &ns[k], why));
    }
    CUDA_TRY(cudaMemcpy(t->host, b->sink, (size_t)places * sizeof *t->host, cudaMemcpyDeviceToHost));
    for (int32_t i = 0; i < places; i++)
        stay += (double)(t->host[i].end_ns - t->host[i].begin_ns) / places;
    *value = (ns[1] - ns[0]) / waves - stay;
    return STATUS_OK;
}

static enum status measure(struct probe_bench *b, struct probe_cta *host, struct probe *out, struct why *why)
{
    static const int32_t smem_kb[3] = {0, 16, 200};
    TRY(map_gpcs(b, host, out, why));
    TRY(probe_figure_of(b, first_wave_once, host, &out->first_wave_ns, why));
    out->n_first = b->sms < PROBE_SMS ? b->sms : PROBE_SMS;
    for (int32_t i = 0; i < out->n_first; i++)
        out->first_wave[i] = (int32_t)host[i].sm;
    for (int k = 0; k < 3; k++) {
        const struct turnaround t = {host, smem_kb[k] << 10};
        if (t.smem_bytes > (int32_t)b->d->properties.sharedMemPerBlockOptin) continue;
        TRY(probe_figure_of(b, turnaround_once, &t, &out->turnaround_ns[k], why));
    }
    return STATUS_OK;
}

enum status probe_placement(struct probe_bench *b, struct probe *out, struct why *why)
{
    struct probe_cta *host = (struct probe_cta *)malloc(MAX_CTAS * sizeof *host);
    static_assert(MAX_CTAS * sizeof(struct probe_cta) <= (size_t)1 << 20, "fits the sink");
    if (!host) return status_fail(why, STATUS_NO_MEMORY, "probe: out of memory");
    const enum status status = measure(b, host, out, why);
    free(host);
    return status;
}
