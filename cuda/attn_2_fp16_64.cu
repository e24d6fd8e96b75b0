/* attn_2_mma for fp16 Q and O, head sizes up to 64. */
#define ROWS_T    __half
#define ROWS_D    64
#define ROWS_FIND kernels_attn_2_fp16_64
#include "cuda/attn_2_rows.cuh"
