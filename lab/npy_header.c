#include "lab/npy_header.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

__attribute__((format(printf, 2, 3))) static bool expect(struct npy_text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(t->expected, sizeof t->expected, format, args);
    va_end(args);
    return false;
}

static void skip_space(struct npy_text *t)
{
    while (t->at < t->end && memchr(" \t\n\r\f", *t->at, 5))
        t->at++;
}

static bool take(struct npy_text *t, const char *word)
{
    const size_t n = strlen(word);
    skip_space(t);
    if ((size_t)(t->end - t->at) < n || memcmp(t->at, word, n) != 0) return false;
    t->at += n;
    return true;
}

/* Of printable ASCII without escapes: nothing that is read needs more. */
static bool take_string(struct npy_text *t, char *out, size_t size)
{
    const char *quote = take(t, "'") ? "'" : take(t, "\"") ? "\"" : NULL;
    size_t n = 0;
    if (!quote) return false;
    for (; t->at < t->end && *t->at != *quote; t->at++) {
        if (n + 1 == size || *t->at < ' ' || *t->at > '~' || *t->at == '\\') return false;
        out[n++] = *t->at;
    }
    out[n] = '\0';
    return take(t, quote);
}

static bool take_number(struct npy_text *t, int64_t *out)
{
    skip_space(t);
    const char *first = t->at;
    for (*out = 0; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++)
        if (__builtin_mul_overflow(*out, 10, out) || __builtin_add_overflow(*out, *t->at - '0', out))
            return false;
    return t->at > first;
}

bool npy_good_width(char kind, int64_t bytes)
{
    switch (kind) {
    case 'b':
        return bytes == 1;
    case 'i':
    case 'u':
    case 'f':
        return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
    case 'U':
        return bytes > 0 && bytes % 4 == 0 && bytes <= INT32_MAX;
    case 'V':
        return bytes > 0 && bytes <= INT32_MAX;
    default:
        return false;
    }
}

/* '<f4', or 'f4' alone; '=' and '|' are this machine's order. The number is bytes, of U code points. */
static bool parse_dtype(struct npy_text *t, struct npy_array *a, struct npy_layout *how)
{
    char d[24];
    int64_t width;
    if (take(t, "[") || take(t, "(")) return expect(t, "one plain dtype, not a structured one");
    if (!take_string(t, d, sizeof d)) return expect(t, "a dtype such as '<f4'");
    const bool marked = d[0] && strchr("<>|=", d[0]);
    struct npy_text rest = {.at = d + marked, .end = d + strlen(d)};
    a->kind = rest.at < rest.end ? *rest.at++ : '\0';
    const bool numbered = take_number(&rest, &width) && rest.at == rest.end;
    const int64_t unit = a->kind == 'U' ? 4 : 1;
    if (!numbered || width > INT32_MAX || !npy_good_width(a->kind, width * unit))
        return expect(t, "a dtype of b1, i1 to i8, u1 to u8, f1 to f8, U or V, not '%s'%s", d,
                      a->kind == 'O' ? " (Python objects)" : "");
    how->swapped = d[0] == '>' && width * unit > 1;
    a->item_bytes = (int32_t)(width * unit);
    return !how->swapped || a->kind != 'V' || expect(t, "raw bytes without an order, not '%s'", d);
}

/* Python 2 wrote (2L, 3L). */
static bool parse_shape(struct npy_text *t, struct npy_array *a)
{
    bool comma = true;
    if (!take(t, "(")) return expect(t, "a shape such as (2, 3)");
    while (!take(t, ")")) {
        if (!comma) return expect(t, "',' or ')'");
        if (a->n_dims == NPY_MAX_DIMS) return expect(t, "at most %d dimensions", NPY_MAX_DIMS);
        if (!take_number(t, &a->dim[a->n_dims++])) return expect(t, "a dimension in 0..2^63-1");
        if (t->at < t->end && *t->at == 'L') t->at++;
        comma = take(t, ",");
    }
    return a->n_dims != 1 || comma || expect(t, "(n,): (n) is no tuple");
}

static bool parse_order(struct npy_text *t, struct npy_layout *how)
{
    how->fortran = take(t, "True");
    return how->fortran || take(t, "False") || expect(t, "True or False");
}

static bool parse_member(struct npy_text *t, struct npy_array *a, struct npy_layout *how, unsigned *seen)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    char key[16];
    unsigned k = 0;
    if (!take_string(t, key, sizeof key)) return expect(t, "a key: descr, fortran_order or shape");
    while (k < 3 && strcmp(key, keys[k]) != 0)
        k++;
    if (k == 3 || (*seen >> k & 1)) return expect(t, "descr, fortran_order and shape, each once");
    *seen |= 1U << k;
    if (!take(t, ":")) return expect(t, "':'");
    return k == 0 ? parse_dtype(t, a, how) : k == 1 ? parse_order(t, how) : parse_shape(t, a);
}

bool npy_parse_header(struct npy_text *t, struct npy_array *a, struct npy_layout *how)
{
    bool comma = true;
    unsigned seen = 0;
    if (!take(t, "{")) return expect(t, "a Python dict");
    while (!take(t, "}")) {
        if (!comma) return expect(t, "',' or '}'");
        if (!parse_member(t, a, how, &seen)) return false;
        comma = take(t, ",");
    }
    skip_space(t);
    if (t->at != t->end) return expect(t, "nothing after the dict");
    return seen == 7 || expect(t, "descr, fortran_order and shape, each once");
}

bool npy_measure(struct npy_array *a)
{
    a->n = 1;
    for (int32_t d = 0; d < a->n_dims; d++)
        if (a->dim[d] == 0) a->n = 0;
    for (int32_t d = 0; a->n > 0 && d < a->n_dims; d++)
        if (__builtin_mul_overflow(a->n, (size_t)a->dim[d], &a->n)) return false;
    return !__builtin_mul_overflow(a->n, (size_t)a->item_bytes, &a->bytes) && a->bytes <= PTRDIFF_MAX;
}

bool npy_good_name(const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 0x7f) return false;
    return n > 0 && n < NPY_NAME_MAX;
}

size_t npy_format_header(const struct npy_array *a, char *out)
{
    const bool ordered = a->kind == 'U' || (a->kind != 'V' && a->item_bytes > 1);
    const int width = a->kind == 'U' ? a->item_bytes / 4 : a->item_bytes;
    int first = 0, n = 10;
    n += snprintf(out + n, NPY_HEADER_MAX - (size_t)n,
                  "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (", ordered ? '<' : '|', a->kind,
                  width);
    for (int32_t d = 0; d < a->n_dims; d++) {
        const int digits =
            snprintf(out + n, NPY_HEADER_MAX - (size_t)n, "%s%lld", d ? ", " : "", (long long)a->dim[d]);
        if (d == 0) first = digits;
        n += digits;
    }
    n += snprintf(out + n, NPY_HEADER_MAX - (size_t)n, "%s), }", a->n_dims == 1 ? "," : "");
    const int grown = n + (a->n_dims > 0 ? 21 - first : 0) + 1;
    const int total = grown + NPY_ALIGNMENT - grown % NPY_ALIGNMENT;
    memset(out + n, ' ', (size_t)(total - n));
    out[total - 1] = '\n';
    memcpy(out, NPY_MAGIC "\x01\x00", NPY_PREAMBLE);
    out[8] = (char)((total - 10) & 0xff);
    out[9] = (char)((total - 10) >> 8);
    return (size_t)total;
}
