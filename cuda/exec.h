/* exec: runs plans on the GPU that is here. Plain C; builds without CUDA link exec_stub.c, which says so. */
#ifndef TANDEM_CUDA_EXEC_H
#define TANDEM_CUDA_EXEC_H

#include "sched/status.h"

/* STATUS_OK when this build has kernels and a usable GPU is here; else STATUS_UNSUPPORTED with the reason. */
enum status cuda_available(struct why *why);

#endif
