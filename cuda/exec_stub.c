#include "cuda/colocate.h"
#include "cuda/exec.h"
#include "cuda/probe.h"

#include <string.h>

static enum status no_kernels(struct why *why)
{
    return status_fail(why, STATUS_UNSUPPORTED,
                       "this build has no CUDA kernels (make cuda builds them where nvcc is): the CPU side "
                       "is complete without");
}

enum status cuda_available(struct why *why)
{
    return no_kernels(why);
}

enum status cuda_open(struct cuda_device **out, struct why *why)
{
    *out = NULL;
    return no_kernels(why);
}

void cuda_close(struct cuda_device *d)
{
    (void)d;
}

/* Nobody gets a device to call these with. */
enum status cuda_card(struct cuda_device *d, struct cuda_card *out, struct why *why)
{
    (void)d;
    memset(out, 0, sizeof *out);
    return no_kernels(why);
}

enum status cuda_load(struct cuda_device *d, const struct batch *b, const struct cuda_tensors *t,
                      struct why *why)
{
    (void)d;
    (void)b;
    (void)t;
    return no_kernels(why);
}

enum status cuda_prepare(struct cuda_device *d, const struct plan *p, const struct cuda_options *options,
                         struct why *why)
{
    (void)d;
    (void)p;
    (void)options;
    return no_kernels(why);
}

void cuda_prepared(const struct cuda_device *d, struct cuda_prepared *out)
{
    (void)d;
    memset(out, 0, sizeof *out);
}

enum status cuda_execute(struct cuda_device *d, float *o, float *lse, struct why *why)
{
    (void)d;
    (void)o;
    (void)lse;
    return no_kernels(why);
}

enum status cuda_spans(struct cuda_device *d, struct span **spans, int64_t *n, struct why *why)
{
    (void)d;
    *spans = NULL;
    *n = 0;
    return no_kernels(why);
}

enum status cuda_time(struct cuda_device *d, const struct cuda_time_options *options, struct cuda_timing *out,
                      struct why *why)
{
    (void)d;
    (void)options;
    memset(out, 0, sizeof *out);
    return no_kernels(why);
}

enum status cuda_row(struct cuda_device *d, enum kernel_id row, const struct shape *shape,
                     const struct kernels *kernels, struct cuda_row *out, struct why *why)
{
    (void)d;
    (void)row;
    (void)shape;
    (void)kernels;
    memset(out, 0, sizeof *out);
    return no_kernels(why);
}

enum status probe_run(struct cuda_device *d, int32_t repeats, void (*step)(const char *name),
                      struct probe *out, struct why *why)
{
    (void)d;
    (void)repeats;
    (void)step;
    memset(out, 0, sizeof *out);
    return no_kernels(why);
}

enum status colocate_run(struct cuda_device *d, const struct colocate_options *options, struct colocate *out,
                         struct why *why)
{
    (void)d;
    (void)options;
    memset(out, 0, sizeof *out);
    return no_kernels(why);
}
