/* attn_2_mma: step 2 of the ladder: FlashAttention-2-class attention on mma.sync (sm_80 and later).
 *
 * A team of ROW_WARPS x KV_WARPS warps holds TILE_Q = 16 M_TILES ROW_WARPS packed rows and walks the keys that any of
 * them sees, TILE_KV at a time. Prefill: warps side by side over rows. Decode: one tile of 16 rows, warps share each
 * tile's keys and merge at the end.
 *
 *   STAGES 1   K and V have one buffer each; one is filled while the other is used
 *              cp.async   K0 V0 |      K1     |      V1     |  K2 ...
 *              warps            | S = Q K0^T  | O += P V0   |  S = Q K1^T ...
 *   STAGES 2   two buffers each; the next tile's copies are issued before this one is used
 *
 * Rows of the page table are read a tile ahead, by one thread a key, so that a copy never waits for its address. Keys
 * past the end are zeros in shared memory and -inf as scores: page tails are never read. Shared memory rows are swizzled
 * (16-byte chunk c of row r lies at c ^ (r & 7)), so ldmatrix has no bank conflicts.
 *
 * Scores stay as raw dots where they only need a positive scale (then exp2(dot c - max c) is one FMA and one ex2);
 * otherwise they become logits in base 2 first. */
#ifndef TANDEM_CUDA_ATTN_2_MMA_CUH
#define TANDEM_CUDA_ATTN_2_MMA_CUH

#include "cuda/mma.cuh"
#include "cuda/number.cuh"
#include "cuda/walk.h"
#include "cuda/worker.cuh"

#define ATTN_2_LOG2E 1.4426950408889634f
#define ATTN_2_LN2   0.6931471805599453f
#define ATTN_2_LAZY  6.0f /* see softmax */

struct attn_2_key {
    int64_t k, v; /* element offsets; k < 0: no such key */
};

/* What the rows of a tile see: no row before `first`, none from `last` on; every row all of [full_begin, full_end). */
struct attn_2_reach {
    int32_t first, last, full_begin, full_end;
};

/* PLAIN: for plain batches (view.plain) alone: soft cap, ALiBi, bit masks and 8-bit caches left out.
 * TEAM: team.index where it is always the same, else -1. */
template <class T_, int D_, bool PLAIN, int ROW_WARPS_, int KV_WARPS_, int M_TILES_, int TILE_KV_, int STAGES_,
          int TEAM = 0>
struct attn_2 {
    typedef T_ T;
    enum {
        D = D_,
        ROW_WARPS = ROW_WARPS_,
        KV_WARPS = KV_WARPS_,
        M_TILES = M_TILES_,
        TILE_KV = TILE_KV_,
        STAGES = STAGES_,
        THREADS = 32 * ROW_WARPS * KV_WARPS,
        TILE_Q = 16 * M_TILES * ROW_WARPS,
        WARP_KV = TILE_KV / KV_WARPS,
        N_TILES = WARP_KV / 8,
        CHUNKS = D / 8, /* of 16 bytes, in a row */
        COPY_ROWS = THREADS / CHUNKS, /* rows that the team copies at once */
        Q_BYTES = TILE_Q * D * 2,
        KV_BYTES = TILE_KV * D * 2,
        KEYS_AT = Q_BYTES + 2 * STAGES * KV_BYTES,
        ROWS_AT = KEYS_AT + 2 * TILE_KV * (int)sizeof(struct attn_2_key),
        SMEM_BYTES = ROWS_AT + TILE_Q * (int)sizeof(struct walk_row)
    };
    static_assert(TILE_KV <= THREADS, "one thread a key fills the table of addresses");
    static_assert(THREADS % CHUNKS == 0 && TILE_KV % COPY_ROWS == 0, "a thread copies one chunk of each row it takes");
    static_assert(KV_WARPS == 1 || (ROW_WARPS == 1 && M_TILES == 1), "warps share keys of one tile of 16 rows");
    static_assert(KV_WARPS == 1 || KV_WARPS * TILE_Q * D * 4 <= 2 * STAGES * KV_BYTES, "merge buffer");

    /* A thread's part of scores and outputs: rows g and g + 8 of each tile of 16. */
    struct state {
        float o[M_TILES][D / 8][4];
        float base[M_TILES][2], sum[M_TILES][2]; /* exp2(score - base) is what o and sum add up */
    };

    /* Where things are, the same for all tiles of keys. */
    struct context {
        const struct view *x;
        const struct item *item;
        const struct team *t;
        uint32_t q, k, v; /* shared memory */
        struct attn_2_key *keys;
        struct walk_row *rows;
        const int32_t *pages; /* of the request whose keys these are */
        int32_t n_rows, kv_head;
        int32_t origin, step, last, n_tiles; /* keys walked: tile i begins at origin + i step, none from last on */
        int32_t lane, row_warp, kv_warp;
        int32_t page_shift; /* -1: page_size is no power of two */
    };

    static __device__ __forceinline__ void sync(const context &c)
    {
        if (THREADS == 32)
            __syncwarp();
        else if (TEAM >= 0)
            asm volatile("bar.sync %0, %1;" ::"n"((int)(1 + TEAM)), "n"((int)THREADS) : "memory");
        else
            team_sync(c.t);
    }

    static __device__ __forceinline__ int32_t tile_begin(const context &c, int32_t tile)
    {
        return c.origin + tile * c.step;
    }

    static __device__ __forceinline__ int32_t shift_of(int32_t n)
    {
        return n & (n - 1) ? -1 : 31 - __clz(n);
    }

    /* ---- addresses ------------------------------------------------------------------------------------------- */

    /* The page of this thread's key of a tile; -1 where there is none. */
    static __device__ __forceinline__ int32_t find_page(const context &c, int32_t tile)
    {
        const int32_t key = tile_begin(c, tile) + c.t->thread;
        if (c.t->thread >= TILE_KV || tile >= c.n_tiles || key >= c.last) return -1;
        return __ldg(c.pages + (c.page_shift >= 0 ? key >> c.page_shift : key / c.x->b.kv.page_size));
    }

    static __device__ __forceinline__ void note_page(const context &c, int32_t tile, int32_t page)
    {
        if (c.t->thread >= TILE_KV) return;
        const int32_t page_size = c.x->b.kv.page_size, index = tile_begin(c, tile) + c.t->thread,
                      pos = c.page_shift >= 0 ? index & (page_size - 1) : index % page_size;
        struct attn_2_key key;
        key.k = page < 0 ? -1 : walk_key_at(c.x->k_keys, page, pos, c.kv_head);
        key.v = page < 0 ? -1 : walk_key_at(c.x->v_keys, page, pos, c.kv_head);
        c.keys[(tile & 1) * TILE_KV + c.t->thread] = key;
    }

    /* ---- copies ---------------------------------------------------------------------------------------------- */

    static __device__ __forceinline__ uint32_t chunk_at(uint32_t base, int32_t row, int32_t chunk)
    {
        return base + row * (D * 2) + ((chunk ^ (row & 7)) << 4);
    }

    static __device__ __forceinline__ void copy_q(const context &c)
    {
        const int32_t dim = c.x->b.shape.head_dim_qk;
        for (int32_t i = c.t->thread; i < TILE_Q * CHUNKS; i += THREADS) {
            const int32_t row = i / CHUNKS, chunk = i % CHUNKS;
            const bool valid = row < c.n_rows && chunk * 8 < dim;
            const struct walk_row &r = c.rows[row];
            const T *src = (const T *)c.x->q + (valid ? walk_row_offset(c.x->q_rows, r.token, r.head) + chunk * 8 : 0);
            mma_copy16(chunk_at(c.q, row, chunk), src, valid);
        }
    }

    /* 8 elements of an 8-bit type widened to T, exactly, through registers. */
    static __device__ __forceinline__ void widen8(uint32_t dst, const uint8_t *src, bool valid, bool e4m3)
    {
        uint32_t out[4] = {0, 0, 0, 0};
        if (valid) {
            const uint2 in = __ldg((const uint2 *)src);
            const uint32_t words[2] = {in.x, in.y};
#pragma unroll
            for (int32_t i = 0; i < 4; i++) {
                const __half2_raw h = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(words[i / 2] >> (16 * (i & 1))),
                                                                 e4m3 ? __NV_E4M3 : __NV_E5M2);
                const float2 f = __half22float2(__half2(h));
                out[i] = mma_pack(T(), f.x, f.y);
            }
        }
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(dst), "r"(out[0]), "r"(out[1]), "r"(out[2]),
                     "r"(out[3])
                     : "memory");
    }

    template <bool V> static __device__ __forceinline__ void copy_tile(const context &c, int32_t tile)
    {
        const struct shape *s = &c.x->b.shape;
        const int32_t dim = V ? s->head_dim_vo : s->head_dim_qk;
        const int32_t first = c.t->thread / CHUNKS, chunk = c.t->thread % CHUNKS;
        const uint32_t base = (V ? c.v : c.k) + (STAGES == 2 ? (tile & 1) * KV_BYTES : 0);
        const struct attn_2_key *keys = c.keys + (tile & 1) * TILE_KV + first;
        const T *pool = (const T *)(V ? c.x->v : c.x->k) + chunk * 8;
        const bool inside = chunk * 8 < dim;
        enum { BATCH = TILE_KV / COPY_ROWS < 4 ? TILE_KV / COPY_ROWS : 4 };
        if (!PLAIN && dtype_is_fp8(s->kv_dtype)) {
            for (int32_t row = 0; row < TILE_KV; row += COPY_ROWS) {
                const int64_t at = V ? keys[row].v : keys[row].k;
                const uint8_t *src = (const uint8_t *)(V ? c.x->v : c.x->k) + chunk * 8 + at;
                widen8(chunk_at(base, row + first, chunk), src, inside && at >= 0, s->kv_dtype == DTYPE_FP8_E4M3);
            }
            return;
        }
        /* addresses a few at a time: a load of the next one does not pass a copy */
#pragma unroll
        for (int32_t row = 0; row < TILE_KV; row += BATCH * COPY_ROWS) {
            int64_t at[BATCH];
#pragma unroll
            for (int32_t j = 0; j < BATCH; j++)
                at[j] = V ? keys[row + j * COPY_ROWS].v : keys[row + j * COPY_ROWS].k;
#pragma unroll
            for (int32_t j = 0; j < BATCH; j++)
                mma_copy16(chunk_at(base, row + j * COPY_ROWS + first, chunk), pool + at[j], inside && at[j] >= 0);
        }
    }

    /* ---- products -------------------------------------------------------------------------------------------- */

    /* S = Q K^T: this warp's rows and keys. */
    static __device__ __forceinline__ void scores(const context &c, int32_t tile, float (&s)[M_TILES][N_TILES][4])
    {
        const int32_t r = c.lane & 7, i = c.lane >> 3;
        const uint32_t q = c.q + (c.row_warp * M_TILES * 16 + (i & 1) * 8 + r) * (D * 2), q_chunk = ((i >> 1) ^ r) << 4;
        const uint32_t k = c.k + (STAGES == 2 ? (tile & 1) * KV_BYTES : 0) +
                           (c.kv_warp * WARP_KV + (i >> 1) * 8 + r) * (D * 2),
                       k_chunk = ((i & 1) ^ r) << 4;
#pragma unroll
        for (int32_t m = 0; m < M_TILES; m++)
#pragma unroll
            for (int32_t n = 0; n < N_TILES; n++)
                s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll
        for (int32_t kk = 0; kk < D / 16; kk++) {
            uint32_t a[M_TILES][4];
#pragma unroll
            for (int32_t m = 0; m < M_TILES; m++)
                mma_load4(a[m], q + m * 16 * (D * 2) + (q_chunk ^ (kk << 5)));
#pragma unroll
            for (int32_t n = 0; n < N_TILES; n += 2) {
                uint32_t b[4];
                mma_load4(b, k + n * 8 * (D * 2) + (k_chunk ^ (kk << 5)));
#pragma unroll
                for (int32_t m = 0; m < M_TILES; m++) {
                    mma_product(T(), s[m][n], a[m], b[0], b[1]);
                    mma_product(T(), s[m][n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    /* O += P V, P rounded to T. */
    static __device__ __forceinline__ void accumulate(const context &c, int32_t tile,
                                                      const float (&s)[M_TILES][N_TILES][4], struct state &st)
    {
        const int32_t r = c.lane & 7, i = c.lane >> 3;
        const uint32_t v = c.v + (STAGES == 2 ? (tile & 1) * KV_BYTES : 0) +
                           (c.kv_warp * WARP_KV + (i & 1) * 8 + r) * (D * 2),
                       v_chunk = ((i >> 1) ^ r) << 4;
#pragma unroll
        for (int32_t kk = 0; kk < WARP_KV / 16; kk++) {
            uint32_t p[M_TILES][4];
#pragma unroll
            for (int32_t m = 0; m < M_TILES; m++) {
                p[m][0] = mma_pack(T(), s[m][2 * kk][0], s[m][2 * kk][1]);
                p[m][1] = mma_pack(T(), s[m][2 * kk][2], s[m][2 * kk][3]);
                p[m][2] = mma_pack(T(), s[m][2 * kk + 1][0], s[m][2 * kk + 1][1]);
                p[m][3] = mma_pack(T(), s[m][2 * kk + 1][2], s[m][2 * kk + 1][3]);
            }
#pragma unroll
            for (int32_t n = 0; n < D / 8; n += 2) {
                uint32_t b[4];
                mma_load4_transposed(b, v + kk * 16 * (D * 2) + (v_chunk ^ (n << 4)));
#pragma unroll
                for (int32_t m = 0; m < M_TILES; m++) {
                    mma_product(T(), st.o[m][n], p[m], b[0], b[1]);
                    mma_product(T(), st.o[m][n + 1], p[m], b[2], b[3]);
                }
            }
        }
    }

    /* ---- softmax --------------------------------------------------------------------------------------------- */

    /* Scores of keys a row does not see become -inf; with a soft cap, ALiBi or bits they become logits in base 2. */
    static __device__ __forceinline__ void mask(const context &c, int32_t begin, float scale,
                                                float (&s)[M_TILES][N_TILES][4])
    {
#pragma unroll
        for (int32_t m = 0; m < M_TILES; m++)
#pragma unroll
            for (int32_t half = 0; half < 2; half++) {
                const struct walk_row &r = c.rows[(c.row_warp * M_TILES + m) * 16 + half * 8 + (c.lane >> 2)];
                const int32_t row_begin = r.begin, row_end = r.end;
#pragma unroll
                for (int32_t n = 0; n < N_TILES; n++)
#pragma unroll
                    for (int32_t e = 0; e < 2; e++) {
                        const int32_t key = begin + c.kv_warp * WARP_KV + n * 8 + (c.lane & 3) * 2 + e;
                        float &score = s[m][n][half * 2 + e];
                        bool seen = key >= row_begin && key < row_end;
                        if (!PLAIN && seen) {
                            score = walk_logit(c.x, &r, score * scale, key) * ATTN_2_LOG2E;
                            seen = batch_custom_bit(&c.x->b, r.request, r.local, key);
                        }
                        if (!seen) score = -INFINITY;
                    }
            }
    }

    /* Online softmax: s becomes exp2(s unit - base). The base follows the row's maximum only when that is more than
     * LAZY above it: precision is the same whether weights are at most 1 or at most 2^LAZY, and most tiles then leave older
     * sums and outputs as they are. */
    static __device__ __forceinline__ void softmax(float unit, float (&s)[M_TILES][N_TILES][4], struct state &st)
    {
        float max[M_TILES][2];
        bool moves = false;
#pragma unroll
        for (int32_t m = 0; m < M_TILES; m++)
#pragma unroll
            for (int32_t half = 0; half < 2; half++) {
                float most = fmaxf(s[m][0][half * 2], s[m][0][half * 2 + 1]);
#pragma unroll
                for (int32_t n = 1; n < N_TILES; n++)
                    most = fmaxf(most, fmaxf(s[m][n][half * 2], s[m][n][half * 2 + 1]));
                max[m][half] = most;
            }
#pragma unroll
        for (int32_t m = 0; m < M_TILES; m++)
#pragma unroll
            for (int32_t half = 0; half < 2; half++) {
                max[m][half] = fmaxf(max[m][half], __shfl_xor_sync(0xffffffffu, max[m][half], 1));
                max[m][half] = fmaxf(max[m][half], __shfl_xor_sync(0xffffffffu, max[m][half], 2)) * unit;
                moves |= max[m][half] > st.base[m][half] + ATTN_2_LAZY;
            }
        if (__any_sync(0xffffffffu, moves)) rescale(max, st);
#pragma unroll
        for (int32_t m = 0; m < M_TILES; m++)
#pragma unroll
            for (int32_t half = 0; half < 2; half++) {
                const float base = st.base[m][half] == -INFINITY ? 0.0f : st.base[m][half];
                float sum = 0; /* of this tile: long rows are summed in blocks, for precision */
#pragma unroll
                for (int32_t n = 0; n < N_TILES; n++)
#pragma unroll
                    for (int32_t e = half * 2; e < half * 2 + 2; e++) {
                        s[m][n][e] = mma_exp2(s[m][n][e] * unit - base);
                        sum += s[m][n][e];
                    }
                st.sum[m][half] += sum;
            }
    }

    /* Rows whose maximum is far above their base: brings base, sum and outputs up to it. Other rows stay as they are,
     * whoever shares their warp. */
    static __device__ __forceinline__ void rescale(const float (&max)[M_TILES][2], struct state &st)
    {
#pragma unroll
        for (int32_t m = 0; m < M_TILES; m++)
#pragma unroll
            for (int32_t half = 0; half < 2; half++) {
                const bool moves = max[m][half] > st.base[m][half] + ATTN_2_LAZY;
                const float scale = moves ? mma_exp2(st.base[m][half] - max[m][half]) : 1.0f;
                if (moves) st.base[m][half] = max[m][half];
                st.sum[m][half] *= scale;
#pragma unroll
                for (int32_t n = 0; n < D / 8; n++) {
                    st.o[m][n][half * 2] *= scale;
                    st.o[m][n][half * 2 + 1] *= scale;
                }
            }
    }

    /* ---- results --------------------------------------------------------------------------------------------- */

    /* Where row i of the tile goes: O of type float (partial) or T (direct). */
    static __device__ __forceinline__ void put_pair(const context &c, int32_t row, int32_t partial, int32_t d, float a,
                                                    float b)
    {
        if (d >= c.x->b.shape.head_dim_vo) return;
        if (partial >= 0) {
            *(float2 *)(c.x->partial_o + (int64_t)partial * c.x->b.shape.head_dim_vo + d) = make_float2(a, b);
        } else {
            const struct walk_row &r = c.rows[row];
            *(uint32_t *)((T *)c.x->o + walk_row_offset(c.x->o_rows, r.token, r.head) + d) = mma_pack(T(), a, b);
        }
    }

    /* A row's factor and LSE from its maximum (times unit: base 2) and sum; the LSE is written by `writer`. */
    static __device__ __forceinline__ float finish(const context &c, int32_t row, int32_t partial, float max2,
                                                   float sum, bool writer)
    {
        const struct walk_row &r = c.rows[row];
        const float *sink = partial < 0 && c.x->b.mask.sink ? c.x->b.mask.sink + r.head : NULL;
        float factor;
        const float lse = merge_finish(sum > 0 ? max2 * ATTN_2_LN2 : -INFINITY, sum, sink, &factor);
        if (writer) {
            if (partial >= 0)
                c.x->partial_lse[partial] = lse;
            else
                c.x->lse[(int64_t)r.token * c.x->b.shape.num_qo_heads + r.head] = lse;
        }
        return factor * walk_v_scale(c.x, c.item->kv_head);
    }

    static __device__ __forceinline__ int32_t partial_of(const context &c, int32_t first_row, int32_t row)
    {
        return c.item->partial < 0 ? -1 : c.item->partial + first_row - c.item->row_begin + row;
    }

    /* Each warp has its rows whole. */
    static __device__ __forceinline__ void write_rows(const context &c, int32_t first_row, struct state &st)
    {
#pragma unroll
        for (int32_t m = 0; m < M_TILES; m++)
#pragma unroll
            for (int32_t half = 0; half < 2; half++) {
                const int32_t row = (c.row_warp * M_TILES + m) * 16 + half * 8 + (c.lane >> 2);
                float sum = st.sum[m][half];
                sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                sum += __shfl_xor_sync(0xffffffffu, sum, 2);
                if (row >= c.n_rows) continue;
                const int32_t partial = partial_of(c, first_row, row);
                const float factor = finish(c, row, partial, st.base[m][half], sum, (c.lane & 3) == 0);
#pragma unroll
                for (int32_t n = 0; n < D / 8; n++)
                    put_pair(c, row, partial, n * 8 + (c.lane & 3) * 2, st.o[m][n][half * 2] * factor,
                             st.o[m][n][half * 2 + 1] * factor);
            }
    }

    /* Warps have the same 16 rows over different keys: maxima and sums through shared memory (Q's, no longer needed),
     * then outputs (K's and V's). */
    static __device__ __forceinline__ void merge_warps(const context &c, int32_t first_row, char *smem, struct state &st)
    {
        float *max = (float *)smem, *sum = max + KV_WARPS * 16, *o = (float *)(smem + Q_BYTES);
        const int32_t g = c.lane >> 2;
        float scale[2];
#pragma unroll
        for (int32_t half = 0; half < 2; half++) {
            float s = st.sum[0][half];
            s += __shfl_xor_sync(0xffffffffu, s, 1);
            s += __shfl_xor_sync(0xffffffffu, s, 2);
            if ((c.lane & 3) == 0) {
                max[c.kv_warp * 16 + half * 8 + g] = st.base[0][half];
                sum[c.kv_warp * 16 + half * 8 + g] = s;
            }
        }
        sync(c);
#pragma unroll
        for (int32_t half = 0; half < 2; half++) {
            float most = -INFINITY;
            for (int32_t w = 0; w < KV_WARPS; w++)
                most = fmaxf(most, max[w * 16 + half * 8 + g]);
            scale[half] = most == -INFINITY ? 0.0f : mma_exp2(st.base[0][half] - most);
        }
#pragma unroll
        for (int32_t n = 0; n < D / 8; n++)
#pragma unroll
            for (int32_t half = 0; half < 2; half++)
                *(float2 *)(o + ((c.kv_warp * 16 + half * 8 + g) * D + n * 8 + (c.lane & 3) * 2)) =
                    make_float2(st.o[0][n][half * 2] * scale[half], st.o[0][n][half * 2 + 1] * scale[half]);
        sync(c);
        for (int32_t i = c.t->thread; i < c.n_rows * (D / 2); i += THREADS) {
            const int32_t row = i / (D / 2), d = i % (D / 2) * 2, partial = partial_of(c, first_row, row);
            float most = -INFINITY, total = 0, a = 0, b = 0;
            for (int32_t w = 0; w < KV_WARPS; w++)
                most = fmaxf(most, max[w * 16 + row]);
            for (int32_t w = 0; w < KV_WARPS; w++) {
                if (max[w * 16 + row] > -INFINITY)
                    total += sum[w * 16 + row] * mma_exp2(max[w * 16 + row] - most);
                const float2 part = *(const float2 *)(o + ((w * 16 + row) * D + d));
                a += part.x;
                b += part.y;
            }
            const float factor = finish(c, row, partial, most, total, d == 0);
            put_pair(c, row, partial, d, a * factor, b * factor);
        }
    }

    /* ---- one tile of rows ------------------------------------------------------------------------------------ */

    /* Every warp looks at all rows itself: cheaper than passing a result on. */
    static __device__ __forceinline__ struct attn_2_reach reach(const context &c)
    {
        struct attn_2_reach a = {INT32_MAX, 0, 0, INT32_MAX};
#pragma unroll
        for (int32_t i = 0; i < (TILE_Q + 31) / 32; i++) {
            const int32_t row = i * 32 + c.lane;
            if (row >= c.n_rows) continue;
            const int32_t begin = c.rows[row].begin, end = c.rows[row].end;
            if (begin < end) {
                a.first = min(a.first, begin);
                a.last = max(a.last, end);
            }
            a.full_begin = max(a.full_begin, begin);
            a.full_end = min(a.full_end, end);
        }
        a.first = __reduce_min_sync(0xffffffffu, a.first);
        a.last = __reduce_max_sync(0xffffffffu, a.last);
        a.full_begin = __reduce_max_sync(0xffffffffu, a.full_begin);
        a.full_end = __reduce_min_sync(0xffffffffu, a.full_end);
        return a;
    }

    static __device__ __forceinline__ void walk_keys(const context &c, const struct attn_2_reach &a, float scale,
                                                     float unit, struct state &st)
    {
        int32_t page = find_page(c, 0);
        note_page(c, 0, page);
        page = find_page(c, 1);
        if (STAGES == 2) {
            note_page(c, 1, page);
            page = find_page(c, 2);
        }
        sync(c);
        copy_q(c);
        copy_tile<false>(c, 0);
        if (STAGES == 2) {
            mma_commit();
            copy_tile<true>(c, 0);
        }
        mma_commit();
        for (int32_t tile = 0; tile < c.n_tiles; tile++) {
            const bool more = tile + 1 < c.n_tiles;
            const int32_t begin = tile_begin(c, tile);
            float s[M_TILES][N_TILES][4];
            mma_wait<STAGES - 1>(); /* K of this tile; with two stages its V may be under way */
            sync(c);
            if (STAGES == 1)
                copy_tile<true>(c, tile);
            else if (more)
                copy_tile<false>(c, tile + 1);
            mma_commit();
            note_page(c, tile + STAGES, page);
            page = find_page(c, tile + STAGES + 1);
            scores(c, tile, s);
            if (!PLAIN || begin < a.full_begin || begin + TILE_KV > a.full_end) mask(c, begin, scale, s);
            softmax(unit, s, st);
            mma_wait<STAGES - 1>(); /* V of this tile; with two stages the next K may be under way */
            sync(c);
            if (more) copy_tile<STAGES == 2>(c, tile + 1);
            mma_commit();
            accumulate(c, tile, s, st);
        }
        mma_wait<0>();
        sync(c);
    }

    static __device__ __forceinline__ void tile_of_rows(const struct view_launch *l, const struct item *item,
                                                        int32_t order, int32_t first_row, const struct team *t)
    {
        const int32_t warp = t->thread / 32, left = item->row_end - first_row;
        const uint32_t base = mma_shared(t->smem);
        const struct kv_table *kv = &l->x.b.kv;
        context c;
        c.x = &l->x;
        c.item = item;
        c.t = t;
        c.q = base;
        c.k = base + Q_BYTES;
        c.v = c.k + STAGES * KV_BYTES;
        c.keys = (struct attn_2_key *)(t->smem + KEYS_AT);
        c.rows = (struct walk_row *)(t->smem + ROWS_AT);
        c.pages = kv->kv_indices + kv->kv_indptr[walk_pages_of(&l->x, item->group)];
        c.page_shift = shift_of(kv->page_size);
        c.n_rows = left < TILE_Q ? left : TILE_Q;
        c.kv_head = item->kv_head;
        c.lane = t->thread % 32;
        c.row_warp = KV_WARPS > 1 ? 0 : warp;
        c.kv_warp = KV_WARPS > 1 ? warp : 0;
        sync(c); /* nobody still reads the last tile's rows */
        for (int32_t row = t->thread; row < TILE_Q; row += THREADS) {
            struct walk_row r = {0, 0, 0, 0, 0, 0, 0, 0};
            if (row < c.n_rows) r = walk_item_row(c.x, item, order, first_row + row);
            c.rows[row] = r;
        }
        sync(c);
        const struct attn_2_reach a = reach(c);
        const float scale = l->x.sm_scale * walk_k_scale(c.x, item->kv_head);
        const float unit = PLAIN ? scale * ATTN_2_LOG2E : 1.0f;
        const bool reversed = item->flags & ITEM_KV_REVERSED;
        c.last = a.last;
        c.n_tiles = a.first < a.last ? (a.last - a.first + TILE_KV - 1) / TILE_KV : 0;
        c.origin = reversed ? a.first + (c.n_tiles - 1) * TILE_KV : a.first;
        c.step = reversed ? -TILE_KV : TILE_KV;
        struct state st;
#pragma unroll
        for (int32_t m = 0; m < M_TILES; m++) {
            st.base[m][0] = st.base[m][1] = -INFINITY;
            st.sum[m][0] = st.sum[m][1] = 0;
#pragma unroll
            for (int32_t n = 0; n < D / 8; n++)
                st.o[m][n][0] = st.o[m][n][1] = st.o[m][n][2] = st.o[m][n][3] = 0;
        }
        if (c.n_tiles > 0) walk_keys(c, a, scale, unit, st);
        if (KV_WARPS == 1)
            write_rows(c, first_row, st);
        else
            merge_warps(c, first_row, t->smem, st);
    }

    static __device__ __forceinline__ void run(const struct view_launch *l, const struct item *item, int32_t order,
                                               const struct team *t)
    {
        for (int32_t row = item->row_begin; row < item->row_end; row += TILE_Q)
            tile_of_rows(l, item, order, row, t);
    }
};

/* ---- launchable forms ------------------------------------------------------------------------------------------- */

/* One row of the kernel table. EXTRA_THREADS: of a CTA, beyond those that work. */
template <class A> static __device__ void attn_2_one(const struct view_launch *l, const struct item *item, int32_t role,
                                                     const struct team *t)
{
    A::run(l, item, l->g.row_order[role], t);
}

template <class A, int THREADS, int MIN_CTAS>
__global__ void __launch_bounds__(THREADS, MIN_CTAS)
    attn_2_mma(const __grid_constant__ struct view_launch l, const __grid_constant__ struct worker_halves h)
{
    extern __shared__ __align__(128) char smem[];
    __shared__ int32_t word[WORKER_WORDS];
    worker_loop(&l, &h, smem, word, attn_2_one<A>);
}

/* A fused row: P for prefill items, Q for decode items. */
template <class P, class Q> static __device__ void attn_2_either(const struct view_launch *l, const struct item *item,
                                                                 int32_t role, const struct team *t)
{
    if (role == WORK_PREFILL)
        P::run(l, item, l->g.row_order[WORK_PREFILL], t);
    else
        Q::run(l, item, l->g.row_order[WORK_DECODE], t);
}

template <class P, class Q, int THREADS, int MIN_CTAS>
__global__ void __launch_bounds__(THREADS, MIN_CTAS)
    attn_2_fused(const __grid_constant__ struct view_launch l, const __grid_constant__ struct worker_halves h)
{
    extern __shared__ __align__(128) char smem[];
    __shared__ int32_t word[WORKER_WORDS];
    worker_loop(&l, &h, smem, word, attn_2_either<P, Q>);
}

#endif
