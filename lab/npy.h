/* npy: arrays in NumPy's .npy files and .npz archives, into and out of memory. Knows nothing of attention.
 *
 * Read: .npy formats 1.0, 2.0 and 3.0, alone, in an archive (stored or deflated, zip64) or in a directory.
 * Whatever the file held, what comes out is little-endian and in C order. Files are not trusted: a size is
 * believed only after it was compared with the bytes that are there, before memory is asked for.
 * Not read: structured dtypes, Python objects, byte strings (S), complex numbers, dates, long doubles, a ZIP
 * with anything else in it. Written: archives of stored members, the same bytes for the same arrays. */
#ifndef TANDEM_LAB_NPY_H
#define TANDEM_LAB_NPY_H

#include "sched/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NPY_MAX_DIMS = 8, NPY_NAME_MAX = 64 };

struct npy_array {
    char name[NPY_NAME_MAX]; /* of the member, without .npy */
    char kind;               /* NumPy's: 'f' 'i' 'u' 'b', 'U' text, 'V' raw bytes (bfloat16 of ml_dtypes) */
    int32_t item_bytes;      /* of an element; f i u: 1, 2, 4 or 8; U: 4 for each code point */
    int32_t n_dims;          /* 0: a scalar */
    int64_t dim[NPY_MAX_DIMS];
    void *data;      /* C order, little-endian, owned, 64-byte aligned; not NULL even if empty */
    size_t n, bytes; /* elements (1 for a scalar), bytes of data */
};

struct npy_file {
    struct npy_array *arrays; /* in the archive's order; a directory's by name; no name twice */
    int32_t n;
};

/* The arrays of PATH: an .npz archive; or one .npy file, as one array named after the file; or the .npy files
 * of a directory (others and hidden ones are skipped; none at all is refused). What it is shows in its bytes,
 * not in its name. STATUS_BAD_INPUT names file and member; *out is then empty, with nothing to free. */
enum status npz_read(const char *path, struct npy_file *out, struct why *why);

/* Twice is safe. */
void npy_file_free(struct npy_file *f);

/* NULL if absent. */
const struct npy_array *npy_find(const struct npy_file *f, const char *name);

/* Element i of an array of bool, whole or real numbers of any width, which must be a whole number in
 * [low, high] (2.0 is one). STATUS_BAD_INPUT names array, element and value, as do the two below. */
enum status npy_get_int(const struct npy_array *a, size_t i, int64_t low, int64_t high, int64_t *out,
                        struct why *why);

/* The same as a double in [low, high], never a NaN; a whole number beyond 2^53 is rounded. f1, which NumPy
 * does not know (ml_dtypes' e5m2), is refused: only the caller knows its format. */
enum status npy_get_real(const struct npy_array *a, size_t i, double low, double high, double *out,
                         struct why *why);

/* A text scalar, as np.savez(path, name="text") leaves it, as a C string in out[size]. ASCII only. */
enum status npy_get_text(const struct npy_array *a, char *out, size_t size, struct why *why);

/* An archive that appears whole or not at all. */
struct npz_writer;

/* "-" is refused: parts of an archive are written twice, which a pipe does not allow. */
enum status npz_writer_open(const char *path, struct npz_writer **out, struct why *why);

/* a->data is borrowed until npz_writer_close; a itself only for the call. After a failure the archive cannot
 * be kept. */
enum status npz_writer_add(struct npz_writer *w, const struct npy_array *a, struct why *why);

/* Frees w (NULL is safe). keep: writes the archive, of one array or more, into place first; on failure, or
 * with keep false, no file is left and an older one stays as it was. */
enum status npz_writer_close(struct npz_writer *w, bool keep, struct why *why);

#endif
