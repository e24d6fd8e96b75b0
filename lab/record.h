/* record: one result row, the same columns for every executor, as a table, CSV or JSON. What an executor
 * cannot know is empty, never 0. */
#ifndef TANDEM_LAB_RECORD_H
#define TANDEM_LAB_RECORD_H

#include "lab/workload.h"

#include <stdint.h>
#include <stdio.h>

/* Name and type, in file order: TEXT, INT (int64_t, RECORD_EMPTY = empty), REAL (double, NaN = empty). */
#define RECORD_COLUMNS(X)   \
    X(workload, TEXT)       \
    X(spec, TEXT)           \
    X(seed, INT)            \
    X(model, TEXT)          \
    X(num_qo_heads, INT)    \
    X(num_kv_heads, INT)    \
    X(head_dim, INT)        \
    X(page_size, INT)       \
    X(dtype, TEXT)          \
    X(kv_dtype, TEXT)       \
    X(policy, TEXT)         \
    X(options, TEXT)        \
    X(gpu, TEXT)            \
    X(executor, TEXT)       \
    X(time_us, REAL)        \
    X(time_p10_us, REAL)    \
    X(time_p90_us, REAL)    \
    X(runs, INT)            \
    X(prefill_end_us, REAL) \
    X(decode_end_us, REAL)  \
    X(limit_us, REAL)       \
    X(limit_ratio, REAL)    \
    X(flops, REAL)          \
    X(hbm_bytes, REAL)      \
    X(tensor_util, REAL)    \
    X(hbm_util, REAL)       \
    X(sm_busy_frac, REAL)   \
    X(imbalance, REAL)      \
    X(grids, INT)           \
    X(ctas, INT)            \
    X(items, INT)           \
    X(merges, INT)          \
    X(partial_rows, INT)    \
    X(workspace_bytes, INT) \
    X(plan_us, REAL)        \
    X(max_err_o, REAL)      \
    X(max_err_lse, REAL)    \
    X(joules, REAL)         \
    X(status, TEXT)         \
    X(git, TEXT)            \
    X(created_utc, TEXT)

enum { RECORD_TEXT_MAX = 320 };
#define RECORD_EMPTY INT64_MIN

struct record {
#define TEXT             char
#define INT              int64_t
#define REAL             double
#define RECORD_SIZE_TEXT [RECORD_TEXT_MAX]
#define RECORD_SIZE_INT
#define RECORD_SIZE_REAL
#define X(name, type) type name RECORD_SIZE_##type;
    RECORD_COLUMNS(X)
#undef X
#undef TEXT
#undef INT
#undef REAL
#undef RECORD_SIZE_TEXT
#undef RECORD_SIZE_INT
#undef RECORD_SIZE_REAL
};

/* The git id of this build; the time now, "2026-12-01T10:20:30Z". */
enum { RECORD_TIME_MAX = 32 };
const char *record_git(void);
void record_now(char utc[RECORD_TIME_MAX]);

/* A row with everything empty but what the workload, the build and the clock say. */
void record_init(struct record *r, const struct workload *w);

/* Sets a text column, truncating. */
void record_set_text(char *column, const char *text);

void record_write_csv_header(FILE *out);
void record_write_csv(FILE *out, const struct record *r);

/* RFC 4180: quoted where it must be. */
void record_write_csv_text(FILE *out, const char *text);

/* All rows as one JSON array. */
void record_write_json(FILE *out, const struct record *rows, int32_t n);

#endif
