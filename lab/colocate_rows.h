/* colocate_rows: `tandem bench --colocate`: runs the co-location micro-benchmark (cuda/colocate.h) and
 * prints its rows, which have columns of their own. */
#ifndef TANDEM_LAB_COLOCATE_ROWS_H
#define TANDEM_LAB_COLOCATE_ROWS_H

#include "cuda/colocate.h"
#include "lab/args.h"

#include <stdio.h>

/* Gain of a row over serial of the same share and barrier, and its floor: serial / time - 1; the op that
 * takes longer alone. */
double colocate_gain(const struct colocate_row *r);
double colocate_ideal_us(const struct colocate_row *r);

/* Mean gain of a method over the rows with (without) barriers; NaN when there is none, or an element was
 * wrong. */
double colocate_mean_gain(const struct colocate *c, enum colocate_method method, bool barrier);

/* table: gains as a matrix, methods by shares, with means and POD's; csv, json: a row each. */
void colocate_print(const struct colocate *c, enum args_format format, FILE *out);

/* Measures and prints. STATUS_MISMATCH when a method got elements wrong; its rows say so and the others
 * stand. */
enum status colocate_bench(const struct args *a, struct cuda_device *d, FILE *out, struct why *why);

#endif
