#include "cuda/exec.h"

enum status cuda_available(struct why *why)
{
    return status_fail(why, STATUS_UNSUPPORTED,
                       "this version has no CUDA kernels yet: the CPU side is complete without");
}
