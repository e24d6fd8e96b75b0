/* npy_header: the header of a .npy, from and to text, and the sizes that follow from it. Touches no file and
 * no data; npy.h is for callers, this is what its reader and writer share. */
#ifndef TANDEM_LAB_NPY_HEADER_H
#define TANDEM_LAB_NPY_HEADER_H

#include "lab/npy.h"

enum { NPY_ALIGNMENT = 64, NPY_PREAMBLE = 8, NPY_HEADER_MAX = 512 };

/* The preamble: this, then the version's two bytes. */
#define NPY_MAGIC "\x93NUMPY"

/* How a file's data differs from what an npy_array holds. */
struct npy_layout {
    bool swapped, fortran;
};

/* The header's text, a Python dict. */
struct npy_text {
    const char *begin, *at, *end;
    char expected[100]; /* what was missing at `at`, of the first mistake */
};

/* Sets kind, item_bytes, n_dims and dim of a zeroed array; false: t->expected says what was missing. */
bool npy_parse_header(struct npy_text *t, struct npy_array *a, struct npy_layout *how);

/* Preamble and header as NumPy 2 writes them (format 1.0): one line, padded so that the first dimension may
 * grow to 21 digits and the data starts at a multiple of 64. Returns the length, at most NPY_HEADER_MAX. */
size_t npy_format_header(const struct npy_array *a, char *out);

/* Sets n and bytes from the shape; false if they do not fit. A dimension of 0 makes any others fit. */
bool npy_measure(struct npy_array *a);

/* Does this kind have elements of so many bytes? */
bool npy_good_width(char kind, int64_t bytes);

/* Does it fit an array, and may it stand in a one-line reason? */
bool npy_good_name(const char *name, size_t n);

#endif
