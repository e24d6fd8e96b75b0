/* npy: arrays in NumPy's .npy files and .npz archives, into memory and out of it. Knows nothing of attention.
 *
 * Reads format versions 1 to 3, little- and big-endian, C and Fortran order, stored and deflated members; writes
 * version 1, C order, little-endian, stored. Archives go through libzip. */
#ifndef TANDEM_LAB_NPY_H
#define TANDEM_LAB_NPY_H

#include "sched/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NPY_MAX_DIMS = 8, NPY_NAME_MAX = 64 };

struct npy_array {
    char name[NPY_NAME_MAX]; /* of the member, without .npy */
    char kind;          /* NumPy's: 'f', 'i', 'u', 'b', 'U' (text), 'V' (raw bytes: how bfloat16 is saved) */
    int32_t item_bytes; /* of an element; 'U': 4 a character */
    int32_t n_dims;     /* 0: a scalar */
    int64_t dim[NPY_MAX_DIMS];
    void *data; /* [n] elements, C order, little-endian, 64-byte aligned */
    size_t n, bytes;
};

struct npy_file {
    struct npy_array *arrays;
    int32_t n;
};

/* All arrays of an .npz, or the one of an .npy (named after the file). STATUS_IO, or STATUS_BAD_INPUT naming file
 * and member: not an archive, another kind of member, a header that lies, objects or records, a name twice. */
enum status npy_read(const char *path, struct npy_file *out, struct why *why);
void npy_free(struct npy_file *f);

/* NULL when there is none of that name. */
const struct npy_array *npy_find(const struct npy_file *f, const char *name);

/* Element i of a bool, integer or float array. STATUS_BAD_INPUT when it is something else, or out of range. */
enum status npy_get_int(const struct npy_array *a, size_t i, int64_t low, int64_t high, int64_t *out,
                        struct why *why);
enum status npy_get_real(const struct npy_array *a, size_t i, double *out, struct why *why);

/* A text scalar as ASCII, shorter than `size`. */
enum status npy_get_text(const struct npy_array *a, char *out, size_t size, struct why *why);

/* Writes n arrays as one .npz, whole or not at all; the same arrays give the same bytes. */
enum status npz_write(const char *path, const struct npy_array *arrays, int32_t n, struct why *why);

#endif
