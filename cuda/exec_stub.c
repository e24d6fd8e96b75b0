#include "cuda/exec.h"

enum status cuda_available(struct why *why)
{
    return status_fail(why, STATUS_UNSUPPORTED, "this build has no CUDA kernels (built without nvcc)");
}
