#include "lab/npy.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zip.h>

enum { ALIGNMENT = 64, MAX_HEADER = 1 << 16 };
static const char magic[] = "\x93NUMPY";

/* What is read and where it stands, for reasons. */
struct place {
    const char *path, *member;
};

static enum status bad(const struct place *at, const char *expected, struct why *why)
{
    return status_fail(why, STATUS_BAD_INPUT, "%.150s: %.60s: expected %s", at->path, at->member, expected);
}

/* ---- the header: a Python dict of three entries ------------------------------------------------------------- */

struct header {
    char descr[16];
    bool fortran;
    int32_t n_dims;
    int64_t dim[NPY_MAX_DIMS];
};

static const char *skip_space(const char *p)
{
    while (*p == ' ' || *p == '\n' || *p == '\t')
        p++;
    return p;
}

static bool expect(const char **p, char c)
{
    *p = skip_space(*p);
    if (**p != c) return false;
    ++*p;
    return true;
}

/* 'text' or "text" */
static bool read_string(const char **p, char *out, size_t size)
{
    *p = skip_space(*p);
    const char quote = **p;
    if (quote != '\'' && quote != '"') return false;
    const char *end = strchr(*p + 1, quote);
    if (!end || (size_t)(end - *p - 1) >= size) return false;
    memcpy(out, *p + 1, (size_t)(end - *p - 1));
    out[end - *p - 1] = '\0';
    *p = end + 1;
    return true;
}

/* (2, 3), (5,) or () */
static bool read_shape(const char **p, struct header *h)
{
    if (!expect(p, '(')) return false;
    while (!expect(p, ')')) {
        char *end;
        *p = skip_space(*p);
        errno = 0;
        if (!isdigit((unsigned char)**p) || h->n_dims == NPY_MAX_DIMS) return false;
        h->dim[h->n_dims++] = strtoll(*p, &end, 10);
        if (errno) return false;
        *p = end;
        if (**p == 'L') ++*p; /* Python 2 wrote longs so */
        if (!expect(p, ',')) return expect(p, ')');
    }
    return true;
}

static bool read_bool(const char **p, bool *out)
{
    *p = skip_space(*p);
    const bool yes = strncmp(*p, "True", 4) == 0, no = strncmp(*p, "False", 5) == 0;
    *out = yes;
    *p += yes ? 4 : no ? 5 : 0;
    return yes || no;
}

static bool parse_header(const char *p, struct header *h)
{
    bool has_descr = false, has_order = false, has_shape = false;
    memset(h, 0, sizeof *h);
    if (!expect(&p, '{')) return false;
    while (!expect(&p, '}')) {
        char key[24];
        if (!read_string(&p, key, sizeof key) || !expect(&p, ':')) return false;
        if (strcmp(key, "descr") == 0 && !has_descr)
            has_descr = read_string(&p, h->descr, sizeof h->descr);
        else if (strcmp(key, "fortran_order") == 0 && !has_order)
            has_order = read_bool(&p, &h->fortran);
        else if (strcmp(key, "shape") == 0 && !has_shape)
            has_shape = read_shape(&p, h);
        else
            return false;
        if (!expect(&p, ',')) {
            if (!expect(&p, '}')) return false;
            break;
        }
    }
    return has_descr && has_order && has_shape && *skip_space(p) == '\0';
}

/* "<f4", "|u1", ">i8", "<U3": order, kind, bytes (of 'U': characters). */
static bool parse_descr(const char *descr, struct npy_array *a, bool *swap)
{
    char *end;
    const long size = strtol(descr[0] && descr[1] ? descr + 2 : "", &end, 10);
    if (strlen(descr) < 3 || !strchr("<>|=", descr[0]) || *end || size < 1 || size > 4096) return false;
    a->kind = descr[1];
    a->item_bytes = (int32_t)(descr[1] == 'U' ? 4 * size : size);
    *swap = descr[0] == '>';
    switch (a->kind) {
    case 'f':
        return size == 2 || size == 4 || size == 8;
    case 'i':
    case 'u':
        return size == 1 || size == 2 || size == 4 || size == 8;
    case 'b':
        return size == 1;
    case 'U':
        return true;
    case 'V':
        return size <= 2;
    default:
        return false;
    }
}

/* Elements and bytes; false where they overflow. */
static bool set_sizes(struct npy_array *a)
{
    size_t n = 1;
    for (int32_t i = 0; i < a->n_dims; i++)
        if (__builtin_mul_overflow(n, (size_t)a->dim[i], &n)) return false;
    a->n = n;
    return !__builtin_mul_overflow(n, (size_t)a->item_bytes, &a->bytes) && a->bytes < SIZE_MAX / 2;
}

/* ---- data ------------------------------------------------------------------------------------------------------ */

static void swap_bytes(struct npy_array *a)
{
    const size_t unit = a->kind == 'U' ? 4 : (size_t)a->item_bytes;
    unsigned char *p = a->data;
    for (size_t i = 0; i < a->bytes; i += unit)
        for (size_t k = 0; k < unit / 2; k++) {
            const unsigned char c = p[i + k];
            p[i + k] = p[i + unit - 1 - k];
            p[i + unit - 1 - k] = c;
        }
}

/* Fortran order, first index fastest, into C order: walks the source in order and counts indices up. */
static bool to_c_order(struct npy_array *a)
{
    const size_t size = (size_t)a->item_bytes;
    int64_t index[NPY_MAX_DIMS] = {0};
    char *out = aligned_alloc(ALIGNMENT, (a->bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT);
    if (!out) return false;
    for (size_t i = 0; i < a->n; i++) {
        size_t at = 0;
        for (int32_t d = 0; d < a->n_dims; d++)
            at = at * (size_t)a->dim[d] + (size_t)index[d];
        memcpy(out + at * size, (char *)a->data + i * size, size);
        for (int32_t d = 0; d < a->n_dims && ++index[d] == a->dim[d]; d++)
            index[d] = 0;
    }
    free(a->data);
    a->data = out;
    return true;
}

/* A stream of bytes: an archive's member or a plain file. */
struct source {
    zip_file_t *member;
    FILE *file;
    uint64_t size; /* bytes in all */
};

static bool read_bytes(struct source *s, void *out, size_t n)
{
    char *p = out;
    while (n > 0) {
        const int64_t got = s->member ? (int64_t)zip_fread(s->member, p, n) : (int64_t)fread(p, 1, n, s->file);
        if (got <= 0) return false;
        p += got;
        n -= (size_t)got;
    }
    return true;
}

static enum status read_header(struct source *s, const struct place *at, struct header *h, size_t *consumed,
                               struct why *why)
{
    unsigned char start[12];
    if (!read_bytes(s, start, 10) || memcmp(start, magic, 6) != 0) return bad(at, "an .npy array", why);
    const bool is_long = start[6] >= 2;
    if (start[6] < 1 || start[6] > 3 || (is_long && !read_bytes(s, start + 10, 2)))
        return bad(at, "format version 1, 2 or 3", why);
    const uint32_t length = (uint32_t)start[8] | (uint32_t)start[9] << 8 |
                            (is_long ? (uint32_t)start[10] << 16 | (uint32_t)start[11] << 24 : 0);
    if (length > MAX_HEADER) return bad(at, "a header of at most 64 KiB", why);
    char *text = calloc(length + 1, 1);
    if (!text) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    const bool ok = read_bytes(s, text, length) && strlen(text) == length && parse_header(text, h);
    free(text);
    *consumed = (size_t)(is_long ? 12 : 10) + length;
    return ok ? STATUS_OK : bad(at, "a header with descr, fortran_order and shape", why);
}

static enum status read_array(struct source *s, const struct place *at, struct npy_array *a, struct why *why)
{
    struct header h;
    size_t consumed = 0;
    bool swap;
    TRY(read_header(s, at, &h, &consumed, why));
    if (!parse_descr(h.descr, a, &swap))
        return bad(at, "numbers, booleans, text or raw bytes (no objects, no records)", why);
    a->n_dims = h.n_dims;
    memcpy(a->dim, h.dim, sizeof a->dim);
    if (!set_sizes(a) || a->bytes > s->size || s->size - consumed != a->bytes)
        return bad(at, "as many bytes as its shape says", why);
    a->data = aligned_alloc(ALIGNMENT, (a->bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT);
    if (!a->data)
        return status_fail(why, STATUS_NO_MEMORY, "%.150s: %.60s: out of memory", at->path, at->member);
    if (!read_bytes(s, a->data, a->bytes)) return bad(at, "whole data: it is cut short or damaged", why);
    if (swap) swap_bytes(a);
    if (h.fortran && a->n_dims > 1 && a->n > 0 && !to_c_order(a))
        return status_fail(why, STATUS_NO_MEMORY, "%.150s: %.60s: out of memory", at->path, at->member);
    return STATUS_OK;
}

/* "dir/q.npy" is named q. */
static void set_name(struct npy_array *a, const char *path)
{
    const char *slash = strrchr(path, '/'), *from = slash ? slash + 1 : path;
    const size_t n = strlen(from), suffix = n > 4 && strcmp(from + n - 4, ".npy") == 0 ? 4 : 0;
    snprintf(a->name, sizeof a->name, "%.*s", (int)(n - suffix), from);
}

static enum status read_member(zip_t *zip, zip_uint64_t i, const char *path, struct npy_file *out,
                               struct why *why)
{
    zip_stat_t st;
    struct source s = {0};
    struct npy_array *a = &out->arrays[out->n];
    zip_stat_init(&st);
    if (zip_stat_index(zip, i, 0, &st) != 0 || !(st.valid & ZIP_STAT_SIZE) || !(st.valid & ZIP_STAT_NAME))
        return status_fail(why, STATUS_BAD_INPUT, "%.150s: member %d cannot be read", path, (int)i);
    const struct place at = {path, st.name};
    set_name(a, st.name);
    if (npy_find(out, a->name)) return bad(&at, "each name once", why);
    s.size = st.size;
    s.member = zip_fopen_index(zip, i, 0);
    if (!s.member) return bad(&at, "a stored or deflated member", why);
    out->n++; /* from here on npy_free knows it */
    const enum status status = read_array(&s, &at, a, why);
    zip_fclose(s.member);
    return status;
}

static enum status read_archive(const char *path, struct npy_file *out, struct why *why)
{
    int code = 0;
    zip_t *zip = zip_open(path, ZIP_RDONLY | ZIP_CHECKCONS, &code);
    if (!zip) return status_fail(why, STATUS_BAD_INPUT, "%.180s: expected an .npz archive or an .npy array", path);
    const zip_int64_t n = zip_get_num_entries(zip, 0);
    enum status status = STATUS_OK;
    out->arrays = calloc((size_t)n + 1, sizeof *out->arrays);
    if (!out->arrays) status = status_fail(why, STATUS_NO_MEMORY, "out of memory");
    for (zip_int64_t i = 0; status == STATUS_OK && i < n; i++)
        status = read_member(zip, (zip_uint64_t)i, path, out, why);
    zip_discard(zip);
    return status;
}

static enum status read_plain(FILE *file, const char *path, struct npy_file *out, struct why *why)
{
    const struct place at = {path, "array"};
    struct source s = {.file = file};
    out->arrays = calloc(1, sizeof *out->arrays);
    if (!out->arrays) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    out->n = 1;
    set_name(&out->arrays[0], path);
    if (fseek(file, 0, SEEK_END) != 0 || ftell(file) < 0) return bad(&at, "a regular file", why);
    s.size = (uint64_t)ftell(file);
    rewind(file);
    return read_array(&s, &at, &out->arrays[0], why);
}

enum status npy_read(const char *path, struct npy_file *out, struct why *why)
{
    char start[6] = {0};
    memset(out, 0, sizeof *out);
    FILE *file = fopen(path, "rb");
    if (!file) return status_fail(why, STATUS_IO, "%.180s: %s", path, strerror(errno));
    errno = 0;
    const size_t got = fread(start, 1, sizeof start, file);
    enum status status;
    if (ferror(file))
        status = status_fail(why, STATUS_IO, "%.180s: %s", path, strerror(errno));
    else if (got == sizeof start && memcmp(start, magic, sizeof start) == 0)
        status = read_plain(file, path, out, why);
    else
        status = read_archive(path, out, why);
    fclose(file);
    if (status != STATUS_OK) npy_free(out);
    return status;
}

void npy_free(struct npy_file *f)
{
    for (int32_t i = 0; i < f->n; i++)
        free(f->arrays[i].data);
    free(f->arrays);
    memset(f, 0, sizeof *f);
}

const struct npy_array *npy_find(const struct npy_file *f, const char *name)
{
    for (int32_t i = 0; i < f->n; i++)
        if (strcmp(f->arrays[i].name, name) == 0) return &f->arrays[i];
    return NULL;
}

/* ---- elements -------------------------------------------------------------------------------------------------- */

static double half_to_double(uint16_t h)
{
    const int exponent = h >> 10 & 31, fraction = h & 1023;
    const double magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                             : exponent == 0 ? ldexp(fraction, -24)
                                             : ldexp(1024 + fraction, exponent - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

/* Unsigned of item_bytes at element i. */
static uint64_t raw(const struct npy_array *a, size_t i)
{
    uint64_t x = 0;
    memcpy(&x, (const char *)a->data + i * (size_t)a->item_bytes, (size_t)a->item_bytes);
    return x;
}

enum status npy_get_real(const struct npy_array *a, size_t i, double *out, struct why *why)
{
    const uint64_t x = i < a->n && a->item_bytes <= 8 ? raw(a, i) : 0;
    const int unused = 64 - 8 * a->item_bytes;
    float f;
    if (i < a->n && a->kind == 'f' && a->item_bytes == 4) {
        memcpy(&f, &x, sizeof f);
        *out = f;
    } else if (i < a->n && a->kind == 'f' && a->item_bytes == 8) {
        memcpy(out, &x, sizeof *out);
    } else if (i < a->n && a->kind == 'f') {
        *out = half_to_double((uint16_t)x);
    } else if (i < a->n && a->kind == 'i') {
        *out = (double)((int64_t)(x << unused) >> unused);
    } else if (i < a->n && (a->kind == 'u' || a->kind == 'b')) {
        *out = (double)x;
    } else {
        return status_fail(why, STATUS_BAD_INPUT, "%.60s: expected a number", a->name);
    }
    return STATUS_OK;
}

enum status npy_get_int(const struct npy_array *a, size_t i, int64_t low, int64_t high, int64_t *out,
                        struct why *why)
{
    double x = NAN;
    if (npy_get_real(a, i, &x, NULL) != STATUS_OK || x != floor(x) || !(x >= (double)low && x <= (double)high))
        return status_fail(why, STATUS_BAD_INPUT, "%.60s[%zu]: expected a whole number in %lld..%lld", a->name,
                           i, (long long)low, (long long)high);
    *out = (int64_t)x;
    return STATUS_OK;
}

enum status npy_get_text(const struct npy_array *a, char *out, size_t size, struct why *why)
{
    const size_t n = (size_t)a->item_bytes / 4;
    size_t used = 0;
    bool ok = a->kind == 'U' && a->n_dims == 0;
    for (size_t i = 0; ok && i < n; i++) {
        uint32_t c;
        memcpy(&c, (const char *)a->data + 4 * i, sizeof c);
        if (c == 0) break;
        ok = c >= ' ' && c < 127 && used + 1 < size;
        if (ok) out[used++] = (char)c;
    }
    out[ok ? used : 0] = '\0';
    return ok ? STATUS_OK : status_fail(why, STATUS_BAD_INPUT, "%.60s: expected a short text", a->name);
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

/* Magic, version 1.0 and a header padded so that data starts at a multiple of 64, as NumPy does. */
static size_t make_header(const struct npy_array *a, char out[256])
{
    char shape[128] = "", text[200];
    for (int32_t i = 0; i < a->n_dims; i++) {
        const size_t used = strlen(shape);
        snprintf(shape + used, sizeof shape - used, "%s%lld%s", i ? ", " : "", (long long)a->dim[i],
                 a->n_dims == 1 ? "," : "");
    }
    snprintf(text, sizeof text, "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (%s), }",
             a->item_bytes == 1 || a->kind == 'V' ? '|' : '<', a->kind,
             a->kind == 'U' ? a->item_bytes / 4 : a->item_bytes, shape);
    const size_t total = (10 + strlen(text) + 1 + 63) / 64 * 64;
    memset(out, ' ', total);
    memcpy(out, magic, 6);
    out[6] = 1;
    out[7] = 0;
    out[8] = (char)((total - 10) & 255);
    out[9] = (char)((total - 10) >> 8);
    memcpy(out + 10, text, strlen(text));
    out[total - 1] = '\n';
    return total;
}

/* Header and data as the one buffer that libzip wants, in two fragments. */
static bool add_member(zip_t *zip, const struct npy_array *a, char *header)
{
    char name[NPY_NAME_MAX + 8];
    const size_t n = make_header(a, header);
    zip_buffer_fragment_t parts[2] = {{(zip_uint8_t *)header, n}, {a->data, a->bytes}};
    zip_error_t error;
    snprintf(name, sizeof name, "%s.npy", a->name);
    zip_error_init(&error);
    zip_source_t *source = zip_source_buffer_fragment_create(parts, a->bytes ? 2 : 1, 0, &error);
    zip_error_fini(&error);
    if (!source) return false;
    const zip_int64_t i = zip_file_add(zip, name, source, ZIP_FL_ENC_UTF_8);
    if (i < 0) {
        zip_source_free(source);
        return false;
    }
    return zip_set_file_compression(zip, (zip_uint64_t)i, ZIP_CM_STORE, 0) == 0 &&
           zip_file_set_dostime(zip, (zip_uint64_t)i, 0, 33, 0) == 0; /* 1980-01-01: the same bytes each time */
}

enum status npz_write(const char *path, const struct npy_array *arrays, int32_t n, struct why *why)
{
    char beside[4096];
    int code = 0;
    zip_error_t error;
    char(*headers)[256] = malloc(((size_t)n + 1) * sizeof *headers);
    if (!headers) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    snprintf(beside, sizeof beside, "%s.tmp-%ld", path, (long)getpid());
    zip_t *zip = zip_open(beside, ZIP_CREATE | ZIP_TRUNCATE, &code);
    bool ok = zip != NULL;
    for (int32_t i = 0; ok && i < n; i++)
        ok = add_member(zip, &arrays[i], headers[i]);
    zip_error_init_with_code(&error, code);
    if (ok && zip_close(zip) != 0) {
        zip_error_fini(&error);
        zip_error_set(&error, zip_error_code_zip(zip_get_error(zip)), zip_error_code_system(zip_get_error(zip)));
        ok = false;
    } else if (ok) {
        zip = NULL;
    }
    if (ok && rename(beside, path) != 0) {
        zip_error_set(&error, ZIP_ER_RENAME, errno);
        ok = false;
    }
    if (!ok) status_fail(why, STATUS_IO, "%.180s: %.200s", path, zip_error_strerror(&error));
    if (zip) zip_discard(zip);
    if (!ok) unlink(beside);
    zip_error_fini(&error);
    free(headers);
    return ok ? STATUS_OK : STATUS_IO;
}
