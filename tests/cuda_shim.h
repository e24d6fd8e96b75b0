/* cuda_shim: runs kernel code on the CPU: a fiber a thread, several CTAs at once, in an order that a seed chooses.
 *
 * Threads of a warp go in step from one meeting (shuffle, warp barrier, named barrier, __syncthreads) to the next; which
 * warp of which resident CTA goes next is the adversary's choice. A meeting that not all of its threads reach is a
 * failure with a line that says so, not a hang.
 *
 * Include before kernel headers; it supplies their words. One launch at a time. */
#ifndef TANDEM_TESTS_CUDA_SHIM_H
#define TANDEM_TESTS_CUDA_SHIM_H

#include <stdbool.h>
#include <stdint.h>

struct shim_launch {
    void (*kernel)(void *args, void *shared); /* one thread's life; `shared` is its CTA's, filled with 0xff */
    void *args;
    int32_t n_ctas, threads; /* whole warps */
    int32_t shared_bytes;
    int32_t resident; /* CTAs at once, up to SHIM_MAX_RESIDENT */
    uint64_t seed;    /* order of CTAs and warps; SM of each CTA */
};

enum { SHIM_MAX_RESIDENT = 4, SHIM_MAX_THREADS = 384 };

/* false: threads did not meet; the reason is in shim_why. */
bool shim_run(const struct shim_launch *l);
extern char shim_why[160];

struct shim_index {
    unsigned x;
};
struct shim_index shim_thread_index(void), shim_block_index(void), shim_block_dim(void);

float shim_shuffle_xor(float x, int lane_mask);
float shim_shuffle(float x, int lane);
int32_t shim_shuffle_int(int32_t x, int lane);
void shim_sync_warp(void);
void shim_sync_block(void);
void shim_fence(void);                                /* others may go first */
void shim_sync_named(int32_t index, int32_t threads); /* named barrier */
uint32_t shim_sm(void);                               /* often past the number of SMs */

#define __device__      __attribute__((unused))
#define __forceinline__ inline
#define threadIdx       (shim_thread_index())
#define blockIdx        (shim_block_index())
#define blockDim        (shim_block_dim())

#define __shfl_xor_sync(mask, x, lanes) shim_shuffle_xor(x, lanes)
#define __shfl_sync(mask, x, lane)      _Generic((x), float : shim_shuffle, int32_t : shim_shuffle_int)(x, lane)
#define __syncthreads()                 shim_sync_block()
#define __syncwarp()                    shim_sync_warp()
#define __threadfence()                 shim_fence()

struct team;
void team_sync_cpu(const struct team *t);
static inline uint32_t worker_sm_cpu(void)
{
    return shim_sm();
}

#endif
