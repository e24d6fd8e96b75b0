/* attn_2_mma for bf16 Q and O, head sizes up to 64. */
#define ROWS_T    __nv_bfloat16
#define ROWS_D    64
#define ROWS_FIND kernels_attn_2_bf16_64
#include "cuda/attn_2_rows.cuh"
