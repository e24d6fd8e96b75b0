#include "lab/json_read.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum status json_fail(const struct json_place *at, const char *member, const char *expected, struct why *why)
{
    if (at->line > 0)
        return status_fail(why, STATUS_BAD_INPUT, "%.120s:%d: %.40s: expected %s", at->file, at->line, member,
                           expected);
    return status_fail(why, STATUS_BAD_INPUT, "%.120s: %.40s: expected %s", at->file, member, expected);
}

enum status json_read_file(const char *path, json_t **out, struct why *why)
{
    json_error_t error;
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    if (!file) return status_fail(why, STATUS_IO, "%.180s: %s", path, strerror(errno));
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    const bool broken = ferror(file);
    const int cause = errno;
    if (file != stdin) fclose(file);
    if (broken) {
        json_decref(root);
        return status_fail(why, STATUS_IO, "%.180s: %s", path, strerror(cause));
    }
    if (!root) return status_fail(why, STATUS_BAD_INPUT, "%.100s:%d: %.120s", path, error.line, error.text);
    *out = root;
    return STATUS_OK;
}

static enum status range_fail(const struct json_place *at, const char *member, int64_t low, int64_t high,
                              struct why *why)
{
    char text[96];
    snprintf(text, sizeof text, "a whole number in %lld..%lld", (long long)low, (long long)high);
    return json_fail(at, member, text, why);
}

enum status json_read_int(const struct json_place *at, const json_t *object, const char *member,
                          bool required, int64_t low, int64_t high, int64_t *out, struct why *why)
{
    const json_t *value = json_object_get(object, member);
    if (!value || json_is_null(value)) return required ? range_fail(at, member, low, high, why) : STATUS_OK;
    if (!json_is_integer(value) || json_integer_value(value) < low || json_integer_value(value) > high)
        return range_fail(at, member, low, high, why);
    *out = json_integer_value(value);
    return STATUS_OK;
}

enum status json_read_ints(const struct json_place *at, const json_t *object, const char *member,
                           bool required, int64_t low, int64_t high, int32_t **out, int32_t *n,
                           struct why *why)
{
    const json_t *array = json_object_get(object, member);
    *out = NULL;
    *n = -1;
    if (!array || json_is_null(array))
        return required ? json_fail(at, member, "an array of whole numbers", why) : STATUS_OK;
    if (!json_is_array(array)) return json_fail(at, member, "an array of whole numbers", why);
    const size_t size = json_array_size(array);
    if (size >= INT32_MAX) return json_fail(at, member, "fewer than 2^31 entries", why);
    int32_t *values = malloc((size + 1) * sizeof *values);
    if (!values) return status_fail(why, STATUS_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < size; i++) {
        const json_t *x = json_array_get(array, i);
        if (!json_is_integer(x) || json_integer_value(x) < low || json_integer_value(x) > high) {
            char name[80];
            snprintf(name, sizeof name, "%s[%zu]", member, i);
            free(values);
            return range_fail(at, name, low, high, why);
        }
        values[i] = (int32_t)json_integer_value(x);
    }
    *out = values;
    *n = (int32_t)size;
    return STATUS_OK;
}

enum status json_check_members(const struct json_place *at, const json_t *object, const char *const *known,
                               struct why *why)
{
    const char *member;
    json_t *value;
    if (!json_is_object(object)) return json_fail(at, "value", "an object", why);
    json_object_foreach((json_t *)object, member, value)
    {
        int i = 0;
        while (known[i] && strcmp(known[i], member) != 0)
            i++;
        if (!known[i]) return json_fail(at, member, "no such key (unknown)", why);
    }
    return STATUS_OK;
}
