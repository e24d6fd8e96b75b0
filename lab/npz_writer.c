#include "lab/npy_header.h"
#include "lab/out_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zip.h>

/* A member's header, which libzip borrows until it closes the archive. */
struct kept {
    struct kept *next;
    char text[NPY_HEADER_MAX];
};

struct npz_writer {
    struct out_file file;
    zip_t *zip;
    zip_error_t error; /* of the sink */
    struct kept *headers;
    enum status status; /* of the first array that could not be added */
    struct why why;
};

static zip_int64_t sink_result(struct npz_writer *w, bool good, zip_int64_t result, int code)
{
    if (good) return result;
    zip_error_set(&w->error, code, errno);
    return -1;
}

static zip_int64_t sink_seek(struct npz_writer *w, void *data, zip_uint64_t size)
{
    const struct zip_source_args_seek *to =
        ZIP_SOURCE_GET_ARGS(struct zip_source_args_seek, data, size, &w->error);
    return to ? sink_result(w, fseeko(w->file.stream, to->offset, to->whence) == 0, 0, ZIP_ER_SEEK) : -1;
}

static zip_int64_t sink_stat(zip_stat_t *st)
{
    zip_stat_init(st);
    st->valid = ZIP_STAT_SIZE;
    st->size = 0;
    return sizeof *st;
}

/* Where libzip writes: into an out_file rather than by its own rename, so that an interrupt cleans up after
 * archives as after other files. It is shown an empty file and so has nothing to read. */
static zip_int64_t sink(void *user, void *data, zip_uint64_t size, zip_source_cmd_t command)
{
    struct npz_writer *w = user;
    switch (command) {
    case ZIP_SOURCE_SUPPORTS:
        return ZIP_SOURCE_SUPPORTS_WRITABLE;
    case ZIP_SOURCE_STAT:
        return sink_stat(data);
    case ZIP_SOURCE_ERROR:
        return zip_error_to_data(&w->error, data, size);
    case ZIP_SOURCE_WRITE:
        return sink_result(w, fwrite(data, 1, size, w->file.stream) == size, (zip_int64_t)size, ZIP_ER_WRITE);
    case ZIP_SOURCE_SEEK_WRITE:
        return sink_seek(w, data, size);
    case ZIP_SOURCE_TELL_WRITE: {
        const off_t at = ftello(w->file.stream);
        return sink_result(w, at >= 0, at, ZIP_ER_TELL);
    }
    case ZIP_SOURCE_OPEN:
    case ZIP_SOURCE_READ:
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_SEEK:
    case ZIP_SOURCE_TELL:
    case ZIP_SOURCE_BEGIN_WRITE:
    case ZIP_SOURCE_COMMIT_WRITE:
    case ZIP_SOURCE_ROLLBACK_WRITE:
    case ZIP_SOURCE_REMOVE:
    case ZIP_SOURCE_FREE:
        return 0;
    default:
        zip_error_set(&w->error, ZIP_ER_OPNOTSUPP, 0);
        return -1;
    }
}

static enum status open_zip(struct npz_writer *w, struct why *why)
{
    zip_source_t *source = zip_source_function_create(sink, w, &w->error);
    w->zip = source ? zip_open_from_source(source, ZIP_CREATE | ZIP_TRUNCATE, &w->error) : NULL;
    if (w->zip) return STATUS_OK;
    zip_source_free(source);
    return status_fail(why, STATUS_NO_MEMORY, "%.180s: %s", w->file.path, zip_error_strerror(&w->error));
}

enum status npz_writer_open(const char *path, struct npz_writer **out, struct why *why)
{
    *out = NULL;
    if (strcmp(path, "-") == 0)
        return status_fail(why, STATUS_BAD_INPUT, "-: an archive cannot go to stdout: expected a file");
    struct npz_writer *w = calloc(1, sizeof *w);
    if (!w) return status_fail(why, STATUS_NO_MEMORY, "%.180s: out of memory", path);
    zip_error_init(&w->error);
    enum status status = out_file_open(path, &w->file, why);
    if (status == STATUS_OK) status = open_zip(w, why);
    if (status == STATUS_OK)
        *out = w;
    else
        npz_writer_close(w, false, NULL);
    return status;
}

/* A wrong array is the caller's input, which may have come from a file. */
static enum status check_array(const struct npy_array *a, struct why *why)
{
    if (!npy_good_name(a->name, strnlen(a->name, sizeof a->name)))
        return status_fail(why, STATUS_BAD_INPUT, "the name of an array: expected 1..%d bytes, no control %s",
                           NPY_NAME_MAX - 1, "characters");
    if (!npy_good_width(a->kind, a->item_bytes))
        return status_fail(why, STATUS_BAD_INPUT, "%s: kind %d of %d bytes: expected one of b i u f U V",
                           a->name, a->kind, (int)a->item_bytes);
    bool good = a->n_dims >= 0 && a->n_dims <= NPY_MAX_DIMS;
    for (int32_t d = 0; good && d < a->n_dims; d++)
        good = a->dim[d] >= 0;
    if (!good)
        return status_fail(why, STATUS_BAD_INPUT, "%s: expected 0..8 dimensions, none below 0", a->name);
    struct npy_array measured = *a;
    if (!npy_measure(&measured) || measured.n != a->n || measured.bytes != a->bytes ||
        (a->bytes > 0 && !a->data))
        return status_fail(why, STATUS_BAD_INPUT,
                           "%s: %zu elements, %zu bytes: expected what the shape holds", a->name, a->n,
                           a->bytes);
    return STATUS_OK;
}

static enum status member_fail(const char *name, zip_error_t *error, struct why *why)
{
    if (zip_error_code_zip(error) == ZIP_ER_EXISTS)
        return status_fail(why, STATUS_BAD_INPUT, "%.72s: twice: expected one member", name);
    return status_fail(why, STATUS_NO_MEMORY, "%.72s: %s", name, zip_error_strerror(error));
}

/* Member times are fixed, or the same arrays would give other bytes a second later. 1980-01-01 00:00 is the
 * ZIP format's zero. */
static enum status add_member(struct npz_writer *w, const struct npy_array *a, struct kept *header,
                              struct why *why)
{
    char name[NPY_NAME_MAX + 4];
    snprintf(name, sizeof name, "%s.npy", a->name);
    const zip_buffer_fragment_t parts[] = {{(zip_uint8_t *)header->text, npy_format_header(a, header->text)},
                                           {a->data, a->bytes}};
    zip_source_t *source = zip_source_buffer_fragment(w->zip, parts, a->bytes > 0 ? 2 : 1, 0);
    const zip_int64_t i = source ? zip_file_add(w->zip, name, source, ZIP_FL_ENC_UTF_8) : -1;
    if (i < 0) {
        zip_source_free(source);
        return member_fail(name, zip_get_error(w->zip), why);
    }
    if (zip_set_file_compression(w->zip, (zip_uint64_t)i, ZIP_CM_STORE, 0) != 0 ||
        zip_file_set_dostime(w->zip, (zip_uint64_t)i, 0, 1 << 5 | 1, 0) != 0)
        return member_fail(name, zip_get_error(w->zip), why);
    return STATUS_OK;
}

static enum status try_add(struct npz_writer *w, const struct npy_array *a, struct why *why)
{
    TRY(check_array(a, why));
    struct kept *header = calloc(1, sizeof *header);
    if (!header) return status_fail(why, STATUS_NO_MEMORY, "%s: no memory for a header", a->name);
    header->next = w->headers;
    w->headers = header;
    return add_member(w, a, header, why);
}

enum status npz_writer_add(struct npz_writer *w, const struct npy_array *a, struct why *why)
{
    struct why reason = {""};
    const enum status status = try_add(w, a, &reason);
    if (status == STATUS_OK) return STATUS_OK;
    if (w->status == STATUS_OK)
        w->status = status_fail(&w->why, status, "%.180s: %.300s", w->file.path, reason.text);
    return status_fail(why, status, "%.180s: %.300s", w->file.path, reason.text);
}

static enum status finish(struct npz_writer *w, struct why *why)
{
    if (w->status != STATUS_OK) return status_fail(why, w->status, "%s", w->why.text);
    if (zip_get_num_entries(w->zip, 0) == 0)
        return status_fail(why, STATUS_BAD_INPUT, "%.180s: no arrays: expected one or more", w->file.path);
    if (zip_close(w->zip) != 0) {
        const bool memory = zip_error_code_zip(zip_get_error(w->zip)) == ZIP_ER_MEMORY;
        return status_fail(why, memory ? STATUS_NO_MEMORY : STATUS_IO, "%.180s: %s", w->file.path,
                           zip_strerror(w->zip));
    }
    w->zip = NULL;
    return out_file_commit(&w->file, why);
}

enum status npz_writer_close(struct npz_writer *w, bool keep, struct why *why)
{
    if (!w) return STATUS_OK;
    const enum status status = keep ? finish(w, why) : STATUS_OK;
    if (w->zip) zip_discard(w->zip);
    out_file_abort(&w->file);
    zip_error_fini(&w->error);
    for (struct kept *h = w->headers, *next; h; h = next) {
        next = h->next;
        free(h);
    }
    free(w);
    return status;
}
