#include "lab/npy_header.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zip.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "data is used as it is stored");

enum { MAX_HEADER = 65535, MAX_DEFLATE_RATIO = 1032, MAGIC_BYTES = sizeof NPY_MAGIC - 1 };

/* ---- where bytes come from ---- */

/* One .npy: a file, or a member of an archive. */
struct input {
    const char *file, *member; /* for reasons; member NULL: not in an archive */
    FILE *stream;              /* one of the two is open */
    zip_file_t *entry;
    uint64_t left; /* bytes that are still to come, as file system or archive claim */
};

__attribute__((format(printf, 3, 4))) static enum status refuse(const struct input *in, struct why *why,
                                                                const char *format, ...)
{
    char text[240];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (in->member)
        return status_fail(why, STATUS_BAD_INPUT, "%.180s: %.72s: %s", in->file, in->member, text);
    return status_fail(why, STATUS_BAD_INPUT, "%.180s: %s", in->file, text);
}

static enum status io_fail(const char *path, int cause, struct why *why)
{
    return status_fail(why, STATUS_IO, "%.180s: %s", path, cause ? strerror(cause) : "read error");
}

/* EINVAL and EFBIG: the archive sent libzip to a place that cannot be. */
static enum status zip_refuse(const struct input *in, zip_error_t *error, struct why *why)
{
    const int code = zip_error_code_zip(error), cause = zip_error_code_system(error);
    if (code == ZIP_ER_NOZIP) return refuse(in, why, "expected an .npz archive or an .npy file");
    if (code == ZIP_ER_MEMORY) return status_fail(why, STATUS_NO_MEMORY, "%.180s: out of memory", in->file);
    if (zip_error_system_type(error) == ZIP_ET_SYS && cause != 0 && cause != EINVAL && cause != EFBIG)
        return io_fail(in->file, cause, why);
    return refuse(in, why, "%s", zip_error_strerror(error));
}

static enum status read_some(struct input *in, char *out, size_t size, size_t *got, struct why *why)
{
    if (in->entry) {
        const zip_int64_t n = zip_fread(in->entry, out, size);
        if (n < 0) return zip_refuse(in, zip_file_get_error(in->entry), why);
        *got = (size_t)n;
        return STATUS_OK;
    }
    *got = fread(out, 1, size, in->stream);
    return ferror(in->stream) ? io_fail(in->file, errno, why) : STATUS_OK;
}

static enum status read_exactly(struct input *in, void *out, size_t size, struct why *why)
{
    size_t got = 0;
    if (size > in->left)
        return refuse(in, why, "ends after %zu of the %zu bytes expected", (size_t)in->left, size);
    for (size_t done = 0; done < size; done += got) {
        TRY(read_some(in, (char *)out + done, size - done, &got, why));
        if (got == 0) return refuse(in, why, "ends after %zu of the %zu bytes expected", done, size);
    }
    in->left -= size;
    return STATUS_OK;
}

/* libzip compares a member's checksum when its end is read. */
static enum status read_end(struct input *in, struct why *why)
{
    char byte;
    size_t got;
    TRY(read_some(in, &byte, 1, &got, why));
    return got == 0 ? STATUS_OK : refuse(in, why, "bytes after the data: expected none");
}

/* ---- one array ---- */

static enum status allocate(const struct input *in, size_t bytes, void **out, struct why *why)
{
    if (posix_memalign(out, NPY_ALIGNMENT, bytes > 0 ? bytes : 1) == 0) return STATUS_OK;
    *out = NULL;
    return status_fail(why, STATUS_NO_MEMORY, "%.180s: no memory for %zu bytes", in->file, bytes);
}

static void swap_bytes(const struct npy_array *a)
{
    const size_t unit = a->kind == 'U' ? 4 : (size_t)a->item_bytes;
    unsigned char *x = a->data;
    for (size_t at = 0; at < a->bytes; at += unit)
        for (size_t low = at, high = at + unit - 1; low < high; low++, high--) {
            const unsigned char byte = x[low];
            x[low] = x[high];
            x[high] = byte;
        }
}

/* Copies elements stored first index fastest to last index fastest. */
static void transpose(const struct npy_array *a, const char *from, char *to)
{
    const size_t item = (size_t)a->item_bytes;
    size_t index[NPY_MAX_DIMS] = {0}, stride[NPY_MAX_DIMS] = {1}, source = 0;
    for (int32_t d = 1; d < a->n_dims; d++)
        stride[d] = stride[d - 1] * (size_t)a->dim[d - 1];
    for (size_t i = 0; i < a->n; i++) {
        memcpy(to + i * item, from + source * item, item);
        for (int32_t d = a->n_dims - 1; d >= 0; d--) {
            source += stride[d];
            if (++index[d] < (size_t)a->dim[d]) break;
            source -= stride[d] * index[d];
            index[d] = 0;
        }
    }
}

static enum status to_c_order(const struct input *in, struct npy_array *a, struct why *why)
{
    void *turned;
    if (a->n_dims < 2 || a->n == 0) return STATUS_OK;
    TRY(allocate(in, a->bytes, &turned, why));
    transpose(a, a->data, turned);
    free(a->data);
    a->data = turned;
    return STATUS_OK;
}

/* The header's length stands in 2 bytes in version 1, in 4 since. */
static enum status read_header_size(struct input *in, size_t *out, struct why *why)
{
    unsigned char p[NPY_PREAMBLE], size[4] = {0};
    if (in->left < sizeof p) return refuse(in, why, "expected an .npy, which starts with \\x93NUMPY");
    TRY(read_exactly(in, p, sizeof p, why));
    if (memcmp(p, NPY_MAGIC, MAGIC_BYTES) != 0)
        return refuse(in, why, "expected an .npy, which starts with \\x93NUMPY");
    if (p[6] < 1 || p[6] > 3 || p[7] != 0)
        return refuse(in, why, "format %d.%d: expected 1.0, 2.0 or 3.0", p[6], p[7]);
    TRY(read_exactly(in, size, p[6] == 1 ? 2 : 4, why));
    *out = size[0] | (size_t)size[1] << 8 | (size_t)size[2] << 16 | (size_t)size[3] << 24;
    if (*out > in->left || *out > MAX_HEADER)
        return refuse(in, why,
                      "header of %zu bytes: expected at most %d, and no more than the %zu that follow", *out,
                      MAX_HEADER, (size_t)in->left);
    return STATUS_OK;
}

static enum status read_header(struct input *in, struct npy_array *a, struct npy_layout *how, struct why *why)
{
    size_t size = 0;
    TRY(read_header_size(in, &size, why));
    char *header = malloc(size + 1);
    if (!header) return status_fail(why, STATUS_NO_MEMORY, "%.180s: no memory for a header", in->file);
    enum status status = read_exactly(in, header, size, why);
    struct npy_text t = {.begin = header, .at = header, .end = header + size};
    if (status == STATUS_OK && !npy_parse_header(&t, a, how))
        status = refuse(in, why, "header, byte %td: expected %s", t.at - t.begin, t.expected);
    free(header);
    return status;
}

static enum status read_array(struct input *in, struct npy_array *a, struct why *why)
{
    struct npy_layout how = {0};
    TRY(read_header(in, a, &how, why));
    if (!npy_measure(a)) return refuse(in, why, "the shape's product: expected below 2^63 bytes");
    if (a->bytes != in->left)
        return refuse(in, why, "%zu bytes of data: expected %zu, for %zu elements of %d", (size_t)in->left,
                      a->bytes, a->n, (int)a->item_bytes);
    TRY(allocate(in, a->bytes, &a->data, why));
    TRY(read_exactly(in, a->data, a->bytes, why));
    TRY(read_end(in, why));
    if (how.swapped) swap_bytes(a);
    return how.fortran ? to_c_order(in, a, why) : STATUS_OK;
}

/* ---- names, files, directories, archives ---- */

static bool ends_in_npy(const char *name)
{
    const size_t n = strlen(name);
    return n >= 4 && strcmp(name + n - 4, ".npy") == 0;
}

static enum status take_name(const struct input *in, const char *name, struct npy_array *a, struct why *why)
{
    const size_t n = strlen(name) - (ends_in_npy(name) ? 4 : 0);
    if (!npy_good_name(name, n))
        return refuse(in, why, "the name of an array: expected 1..%d bytes, no control characters",
                      NPY_NAME_MAX - 1);
    memcpy(a->name, name, n); /* arrays start zeroed */
    return STATUS_OK;
}

static enum status reserve(const char *path, int64_t n, struct npy_file *out, struct why *why)
{
    if (n <= INT32_MAX) out->arrays = calloc((size_t)n + 1, sizeof *out->arrays);
    if (out->arrays) return STATUS_OK;
    return status_fail(why, STATUS_NO_MEMORY, "%.180s: no memory for %lld arrays", path, (long long)n);
}

static enum status read_bare(const char *path, struct npy_file *out, struct why *why)
{
    const char *slash = strrchr(path, '/');
    struct npy_array *a = &out->arrays[out->n++];
    struct input in = {.file = path, .stream = fopen(path, "rb")};
    struct stat st;
    if (!in.stream) return io_fail(path, errno, why);
    enum status status = STATUS_OK;
    if (fstat(fileno(in.stream), &st) != 0)
        status = io_fail(path, errno, why);
    else if (!S_ISREG(st.st_mode))
        status = status_fail(why, STATUS_IO, "%.180s: expected a regular file", path);
    else
        in.left = (uint64_t)st.st_size;
    if (status == STATUS_OK) status = take_name(&in, slash ? slash + 1 : path, a, why);
    if (status == STATUS_OK) status = read_array(&in, a, why);
    fclose(in.stream);
    return status;
}

static int is_shown_npy(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && ends_in_npy(entry->d_name);
}

/* Bytes, not the locale, so that the order is the same everywhere. */
static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static enum status read_in_directory(const char *directory, const char *name, struct npy_file *out,
                                     struct why *why)
{
    const size_t size = strlen(directory) + strlen(name) + 2;
    char *path = malloc(size);
    if (!path) return status_fail(why, STATUS_NO_MEMORY, "%.180s: no memory for a name", directory);
    snprintf(path, size, "%s/%s", directory, name);
    const enum status status = read_bare(path, out, why);
    free(path);
    return status;
}

static enum status read_directory(const char *path, struct npy_file *out, struct why *why)
{
    struct dirent **entries = NULL;
    const int n = scandir(path, &entries, is_shown_npy, by_bytes);
    if (n < 0) return io_fail(path, errno, why);
    enum status status = n > 0 ? reserve(path, n, out, why)
                               : status_fail(why, STATUS_BAD_INPUT,
                                             "%.180s: no .npy file in the directory: expected one", path);
    for (int i = 0; i < n; i++) {
        if (status == STATUS_OK) status = read_in_directory(path, entries[i]->d_name, out, why);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* An archive may claim anything: deflate cannot pass its ratio, and members that share bytes would multiply
 * them. `left`: bytes of the file that no member has claimed yet. */
static enum status check_member(const struct input *in, const zip_stat_t *st, uint64_t *left, struct why *why)
{
    const uint64_t needed = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
    if ((st->valid & needed) != needed) return refuse(in, why, "size unknown: expected one in the directory");
    if (st->comp_method != ZIP_CM_STORE && st->comp_method != ZIP_CM_DEFLATE)
        return refuse(in, why, "compression %d: expected stored (0) or deflated (8)", st->comp_method);
    if (st->comp_size > *left)
        return refuse(in, why, "members of more bytes than the archive: expected them side by side");
    *left -= st->comp_size;
    if (st->comp_method == ZIP_CM_STORE ? st->size != st->comp_size
                                        : st->size / MAX_DEFLATE_RATIO > st->comp_size)
        return refuse(in, why, "%llu bytes in %llu: expected sizes that can be", (unsigned long long)st->size,
                      (unsigned long long)st->comp_size);
    return STATUS_OK;
}

static enum status read_member(zip_t *zip, uint64_t i, const char *path, uint64_t *left, struct npy_file *out,
                               struct why *why)
{
    struct input in = {.file = path};
    struct npy_array *a = &out->arrays[out->n++];
    zip_stat_t st;
    if (zip_stat_index(zip, i, 0, &st) != 0) return zip_refuse(&in, zip_get_error(zip), why);
    if (!(st.valid & ZIP_STAT_NAME)) return refuse(&in, why, "member %llu: no name", (unsigned long long)i);
    TRY(take_name(&in, st.name, a, why));
    in.member = st.name;
    if (!ends_in_npy(st.name)) return refuse(&in, why, "expected only members called .npy");
    TRY(check_member(&in, &st, left, why));
    in.left = st.size;
    in.entry = zip_fopen_index(zip, i, 0);
    if (!in.entry) return zip_refuse(&in, zip_get_error(zip), why);
    const enum status status = read_array(&in, a, why);
    zip_fclose(in.entry);
    return status;
}

static enum status read_archive(const char *path, uint64_t file_bytes, struct npy_file *out, struct why *why)
{
    const struct input in = {.file = path};
    int code = 0;
    zip_t *zip = zip_open(path, ZIP_RDONLY, &code);
    if (!zip) {
        zip_error_t error;
        zip_error_init_with_code(&error, code);
        const enum status status = zip_refuse(&in, &error, why);
        zip_error_fini(&error);
        return status;
    }
    const int64_t n = zip_get_num_entries(zip, 0);
    enum status status = reserve(path, n, out, why);
    for (int64_t i = 0; status == STATUS_OK && i < n; i++)
        status = read_member(zip, (uint64_t)i, path, &file_bytes, out, why);
    zip_discard(zip);
    return status;
}

static enum status starts_as_npy(const char *path, bool *out, struct why *why)
{
    char start[MAGIC_BYTES] = {0};
    FILE *file = fopen(path, "rb");
    if (!file) return io_fail(path, errno, why);
    *out = fread(start, 1, sizeof start, file) == sizeof start && memcmp(start, NPY_MAGIC, sizeof start) == 0;
    const enum status status = ferror(file) ? io_fail(path, errno, why) : STATUS_OK;
    fclose(file);
    return status;
}

static enum status read_path(const char *path, struct npy_file *out, struct why *why)
{
    struct stat st;
    bool bare = false;
    if (stat(path, &st) != 0) return io_fail(path, errno, why);
    if (S_ISDIR(st.st_mode)) return read_directory(path, out, why);
    if (!S_ISREG(st.st_mode))
        return status_fail(why, STATUS_IO, "%.180s: expected a regular file or a directory", path);
    TRY(starts_as_npy(path, &bare, why));
    if (!bare && st.st_size == 0) /* libzip takes it for an archive of nothing */
        return status_fail(why, STATUS_BAD_INPUT, "%.180s: empty: expected an .npz archive or an .npy file",
                           path);
    if (!bare) return read_archive(path, (uint64_t)st.st_size, out, why);
    TRY(reserve(path, 1, out, why));
    return read_bare(path, out, why);
}

static int by_name(const void *a, const void *b)
{
    const struct npy_array *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static enum status check_unique(const char *path, const struct npy_file *f, struct why *why)
{
    enum status status = STATUS_OK;
    const struct npy_array **sorted = malloc(((size_t)f->n + 1) * sizeof *sorted);
    if (!sorted) return status_fail(why, STATUS_NO_MEMORY, "%.180s: no memory for names", path);
    for (int32_t i = 0; i < f->n; i++)
        sorted[i] = &f->arrays[i];
    qsort(sorted, (size_t)f->n, sizeof *sorted, by_name);
    for (int32_t i = 1; i < f->n; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            status = status_fail(why, STATUS_BAD_INPUT, "%.180s: %.64s.npy: twice: expected one member", path,
                                 sorted[i]->name);
    free(sorted);
    return status;
}

enum status npz_read(const char *path, struct npy_file *out, struct why *why)
{
    *out = (struct npy_file){0};
    enum status status = read_path(path, out, why);
    if (status == STATUS_OK) status = check_unique(path, out, why);
    if (status != STATUS_OK) npy_file_free(out);
    return status;
}

void npy_file_free(struct npy_file *f)
{
    for (int32_t i = 0; i < f->n; i++)
        free(f->arrays[i].data);
    free(f->arrays);
    *f = (struct npy_file){0};
}

const struct npy_array *npy_find(const struct npy_file *f, const char *name)
{
    for (int32_t i = 0; i < f->n; i++)
        if (strcmp(f->arrays[i].name, name) == 0) return &f->arrays[i];
    return NULL;
}
