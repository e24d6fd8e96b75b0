/* What launches cost: kernel after kernel in a stream and in a graph; two kernels beside each other. */
#include "cuda/probe_internal.h"

enum { CHAIN = 200 };

__global__ void probe_nothing(uint32_t *out)
{
    if (blockIdx.x == 0 && threadIdx.x == 0) out[0]++;
}

__global__ void probe_busy(uint32_t *out, long long cycles)
{
    const long long start = clock64();
    while (clock64() - start < cycles)
        ;
    if (threadIdx.x == 0) out[blockIdx.x] = 1;
}

static enum status chain(struct probe_bench *b, struct why *why)
{
    for (int32_t i = 0; i < CHAIN; i++)
        probe_nothing<<<(unsigned)b->sms, 128, 0, b->stream>>>(b->sink);
    CUDA_TRY(cudaGetLastError());
    return STATUS_OK;
}

/* The host queues the chain behind a kernel that takes longer than the queueing. */
static enum status stream_once(struct probe_bench *b, const void *args, double *value, struct why *why)
{
    (void)args;
    probe_busy<<<(unsigned)b->sms, 128, 0, b->stream>>>(b->sink, 8000000);
    TRY(probe_begin(b, why));
    TRY(chain(b, why));
    TRY(probe_end(b, value, why));
    *value /= CHAIN;
    return STATUS_OK;
}

static enum status graph_once(struct probe_bench *b, const void *args, double *value, struct why *why)
{
    const cudaGraphExec_t graph = *(const cudaGraphExec_t *)args;
    TRY(probe_begin(b, why));
    CUDA_TRY(cudaGraphLaunch(graph, b->stream));
    TRY(probe_end(b, value, why));
    *value /= CHAIN;
    return STATUS_OK;
}

static enum status graph_gap(struct probe_bench *b, struct probe *out, struct why *why)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    CUDA_TRY(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal));
    enum status status = chain(b, why);
    const cudaError_t error = cudaStreamEndCapture(b->stream, &graph);
    if (status == STATUS_OK && error != cudaSuccess) status = exec_fail(why, error, "probe: capture");
    if (status == STATUS_OK && cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess)
        status = exec_fail(why, cudaGetLastError(), "probe: cudaGraphInstantiate");
    if (status == STATUS_OK) status = probe_figure_of(b, graph_once, &exec, &out->graph_gap_ns, why);
    if (exec) cudaGraphExecDestroy(exec);
    if (graph) cudaGraphDestroy(graph);
    return status;
}

/* Two kernels of half the SMs on two streams over one of them: 1 when they run beside each other, 2 when not. */
static enum status overlap_once(struct probe_bench *b, const void *args, double *value, struct why *why)
{
    const cudaStream_t other = *(const cudaStream_t *)args;
    const unsigned half = (unsigned)b->sms / 2;
    double ns[2];
    for (int k = 0; k < 2; k++) {
        TRY(probe_begin(b, why));
        if (k) CUDA_TRY(cudaStreamWaitEvent(other, b->begin, 0));
        probe_busy<<<half, 1024, 0, b->stream>>>(b->sink, 400000);
        if (k) {
            probe_busy<<<half, 1024, 0, other>>>(b->sink + 4096, 400000);
            CUDA_TRY(cudaEventRecord(b->end, other));
            CUDA_TRY(cudaStreamWaitEvent(b->stream, b->end, 0));
        }
        CUDA_TRY(cudaGetLastError());
        TRY(probe_end(b, &ns[k], why));
    }
    *value = ns[1] / ns[0];
    return STATUS_OK;
}

enum status probe_launches(struct probe_bench *b, struct probe *out, struct why *why)
{
    cudaStream_t other = NULL;
    TRY(probe_figure_of(b, stream_once, NULL, &out->launch_gap_ns, why));
    TRY(graph_gap(b, out, why));
    CUDA_TRY(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    const enum status status = probe_figure_of(b, overlap_once, &other, &out->overlap, why);
    cudaStreamDestroy(other);
    return status;
}
