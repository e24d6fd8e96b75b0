#include "lab/npy.h"

#include "ref/convert.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static uint64_t item_bits(const struct npy_array *a, size_t i)
{
    uint64_t bits = 0;
    memcpy(&bits, (const char *)a->data + i * (size_t)a->item_bytes, (size_t)a->item_bytes);
    return bits;
}

static int64_t item_signed(const struct npy_array *a, size_t i)
{
    const int unused = 64 - 8 * a->item_bytes;
    return (int64_t)(item_bits(a, i) << unused) >> unused;
}

static uint64_t item_unsigned(const struct npy_array *a, size_t i)
{
    return a->kind == 'b' ? item_bits(a, i) != 0 : item_bits(a, i);
}

static double item_real(const struct npy_array *a, size_t i)
{
    const uint64_t bits = item_bits(a, i);
    const uint32_t low = (uint32_t)bits;
    float f;
    double d;
    memcpy(&f, &low, sizeof f);
    memcpy(&d, &bits, sizeof d);
    return a->item_bytes == 2   ? (double)convert_fp16_to_float((uint16_t)bits)
           : a->item_bytes == 4 ? (double)f
                                : d;
}

static enum status check_item(const struct npy_array *a, size_t i, struct why *why)
{
    const bool number = a->kind == 'i' || a->kind == 'u' || a->kind == 'b' || a->kind == 'f';
    if (!number || (a->kind == 'f' && a->item_bytes == 1))
        return status_fail(why, STATUS_BAD_INPUT, "%.63s: %c%d: expected bool, i, u, f2, f4 or f8", a->name,
                           a->kind, (int)a->item_bytes);
    if (i >= a->n)
        return status_fail(why, STATUS_BAD_INPUT, "%.63s: %zu elements: expected at least %zu", a->name, a->n,
                           i + 1);
    return STATUS_OK;
}

/* "name[3] = 7" or, of a scalar, "name = 7". */
static const char *show_item(const struct npy_array *a, size_t i, char *text, size_t size)
{
    char index[32] = "";
    if (a->n_dims > 0) snprintf(index, sizeof index, "[%zu]", i);
    if (a->kind == 'f')
        snprintf(text, size, "%.63s%s = %.9g", a->name, index, item_real(a, i));
    else if (a->kind == 'i')
        snprintf(text, size, "%.63s%s = %lld", a->name, index, (long long)item_signed(a, i));
    else
        snprintf(text, size, "%.63s%s = %llu", a->name, index, (unsigned long long)item_unsigned(a, i));
    return text;
}

/* False if the element is not a whole number or not within int64. */
static bool item_whole(const struct npy_array *a, size_t i, int64_t *out)
{
    const double x = a->kind == 'f' ? item_real(a, i) : 0;
    *out = 0;
    if (a->kind == 'i') *out = item_signed(a, i);
    if (a->kind == 'i') return true;
    if (a->kind == 'f' ? !(x >= -0x1p63 && x < 0x1p63 && x == trunc(x)) : item_unsigned(a, i) > INT64_MAX)
        return false;
    *out = a->kind == 'f' ? (int64_t)x : (int64_t)item_unsigned(a, i);
    return true;
}

enum status npy_get_int(const struct npy_array *a, size_t i, int64_t low, int64_t high, int64_t *out,
                        struct why *why)
{
    char text[128];
    int64_t value;
    TRY(check_item(a, i, why));
    if (!item_whole(a, i, &value) || value < low || value > high)
        return status_fail(why, STATUS_BAD_INPUT, "%s: expected a whole number in %lld..%lld",
                           show_item(a, i, text, sizeof text), (long long)low, (long long)high);
    *out = value;
    return STATUS_OK;
}

enum status npy_get_real(const struct npy_array *a, size_t i, double low, double high, double *out,
                         struct why *why)
{
    char text[128];
    TRY(check_item(a, i, why));
    const double value = a->kind == 'f'   ? item_real(a, i)
                         : a->kind == 'i' ? (double)item_signed(a, i)
                                          : (double)item_unsigned(a, i);
    if (!(value >= low && value <= high)) /* nor is a NaN in it */
        return status_fail(why, STATUS_BAD_INPUT, "%s: expected a number in %g..%g",
                           show_item(a, i, text, sizeof text), low, high);
    *out = value;
    return STATUS_OK;
}

/* NumPy pads text with zeros. */
static size_t text_length(const uint32_t *points, size_t n)
{
    while (n > 0 && points[n - 1] == 0)
        n--;
    return n;
}

enum status npy_get_text(const struct npy_array *a, char *out, size_t size, struct why *why)
{
    if (a->kind != 'U' || a->n_dims != 0)
        return status_fail(why, STATUS_BAD_INPUT, "%.63s: %c%d in %d dimensions: expected a text scalar",
                           a->name, a->kind, (int)a->item_bytes, (int)a->n_dims);
    const uint32_t *points = a->data;
    const size_t n = text_length(points, a->bytes / 4);
    if (n >= size)
        return status_fail(why, STATUS_BAD_INPUT, "%.63s: text of %zu characters: expected fewer than %zu",
                           a->name, n, size);
    for (size_t i = 0; i < n; i++) {
        if (points[i] == 0 || points[i] > 127)
            return status_fail(why, STATUS_BAD_INPUT, "%.63s: character %zu is U+%04X: expected ASCII",
                               a->name, i, (unsigned)points[i]);
        out[i] = (char)points[i];
    }
    out[n] = '\0';
    return STATUS_OK;
}
