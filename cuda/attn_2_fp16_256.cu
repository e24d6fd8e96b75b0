/* attn_2_mma for fp16 Q and O, head sizes up to 256. */
#define ROWS_T    __half
#define ROWS_D    256
#define ROWS_FIND kernels_attn_2_fp16_256
#include "cuda/attn_2_rows.cuh"
