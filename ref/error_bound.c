#include "ref/error_bound.h"

#include <stdlib.h>

/* Unit roundoff and half the least subnormal of a type. */
static double unit_of(enum dtype t)
{
    static const double units[] = {
        [DTYPE_FP32] = 0x1p-24,    [DTYPE_FP16] = 0x1p-11,    [DTYPE_BF16] = 0x1p-8,
        [DTYPE_FP8_E4M3] = 0x1p-4, [DTYPE_FP8_E5M2] = 0x1p-3,
    };
    return units[t];
}

static double floor_of(enum dtype t)
{
    static const double floors[] = {
        [DTYPE_FP32] = 0x1p-150,    [DTYPE_FP16] = 0x1p-25,     [DTYPE_BF16] = 0x1p-134,
        [DTYPE_FP8_E4M3] = 0x1p-10, [DTYPE_FP8_E5M2] = 0x1p-17,
    };
    return floors[t];
}

/* Does a request hold a page twice? Then it has equal keys. */
static bool repeats_pages(const struct batch *b)
{
    int32_t *holder = malloc(((size_t)b->kv.num_pages + 1) * sizeof *holder);
    bool repeats = holder == NULL; /* not known: the wider bound */
    for (int32_t page = 0; holder && page < b->kv.num_pages; page++)
        holder[page] = -1;
    for (int32_t r = 0; r < b->n_requests && !repeats; r++)
        for (int32_t p = b->kv.kv_indptr[r]; p < b->kv.kv_indptr[r + 1]; p++) {
            repeats |= holder[b->kv.kv_indices[p]] == r;
            holder[b->kv.kv_indices[p]] = r;
        }
    free(holder);
    return repeats;
}

struct error_model error_model(const struct batch *b, const struct tensors *t, struct numerics n)
{
    struct error_model m = {.unit = n.kind == NUMERICS_EXACT ? 0x1p-53 : 0x1p-24,
                            .o_unit = 0x1p-24,
                            .o_floor = 0x1p-150,
                            .same_terms = t->same_terms || repeats_pages(b)};
    if (n.kind == NUMERICS_DEVICE) {
        m.p_unit = unit_of(n.p_dtype);
        m.p_floor = floor_of(n.p_dtype) * (dtype_is_fp8(n.p_dtype) ? 0x1p-8 : 1);
        m.o_unit = unit_of(n.o_dtype);
        m.o_floor = floor_of(n.o_dtype);
    }
    return m;
}

/* W: errors of a sum of n positive terms, in units of u. */
static double walk(const struct error_model *m, double n)
{
    return m->same_terms ? n : 2 * sqrt(n < 256 ? n : 256) + 2 * sqrt(n / 64);
}

double error_bound_o(const struct error_model *m, const struct row_sums *s, int32_t n, double lse, double o)
{
    const double weights = s->value_error + s->value * (s->error + 4 * fabs(s->max) + 2 * walk(m, n) + 16);
    const double spread = m->same_terms ? s->value : 3.5 * sqrt(s->value_sq) + 2 * m->p_unit * s->value;
    const double below = (m->same_terms ? n : 3.5 * sqrt(n)) * s->largest / exp(lse - s->max);
    return n == 0 ? 0
                  : m->unit * weights + m->p_unit * spread + m->p_floor * below + m->o_unit * fabs(o) +
                        m->o_floor;
}

double error_bound_lse(const struct error_model *m, const struct row_sums *s, int32_t n, double lse)
{
    return m->unit * (s->error + 2 * fabs(s->max) + walk(m, n) + 8) + (m->unit * 4 + 0x1p-24) * fabs(lse);
}
