/* double_block: textbook attention of a block of rows over a range of keys, in double precision. The oracle
 * runs it over all keys of a row; ref_exec's exact numerics over the keys of an item. Knows no plan. */
#ifndef TANDEM_REF_DOUBLE_BLOCK_H
#define TANDEM_REF_DOUBLE_BLOCK_H

#include "ref/semantics.h"
#include "ref/tensor.h"

enum { DOUBLE_BLOCK_KEYS = 128 };

struct double_block {
    const struct batch *b;
    const struct tensors *t;
    int32_t max_rows, n_rows;
    struct row_ref *row; /* [max_rows], and so on */
    struct score_row *score;
    struct range *seen; /* keys within the range asked for */
    double *q;          /* [max_rows][head_dim_qk], rotated */
    double *q_norm;     /* scale x |q| */
    double *acc;        /* [max_rows][head_dim_vo]: sum of exp(s - max) V */
    double *max, *sum;
    struct row_sums *sums;    /* of exp(s - max) so far, not of p */
    double *k, *v;            /* tile: [head_dim_qk][KEYS], [KEYS][head_dim_vo] */
    double *k_norm, *v_large; /* [KEYS] */
    double *dim_line;         /* [head_dim_qk] */
    float *line;
};

/* false without memory; free takes what create left, twice too. */
bool double_block_create(const struct batch *b, const struct tensors *t, int32_t max_rows,
                         struct double_block *out);
void double_block_free(struct double_block *x);

/* Loads n rows (of one kv head), which may see keys [begin, end) only; nothing is summed yet. Returns the
 * union of what they see. */
struct range double_block_begin(struct double_block *x, const struct row_ref *rows, int32_t n, int32_t begin,
                                int32_t end);

/* Adds keys [begin, end), read through `request`'s page table, for kv_head. Sums run in order of index. */
void double_block_attend(struct double_block *x, int32_t request, int32_t kv_head, int32_t begin,
                         int32_t end);

/* Normalises row i into o[head_dim_vo] and returns its LSE; `sink`: NULL, or the logit that joins. */
double double_block_finish(const struct double_block *x, int32_t i, const double *sink, double *o);

#endif
