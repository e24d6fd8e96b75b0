/* json_read: checked reading of JSON members, with reasons that say where. Over jansson. */
#ifndef TANDEM_LAB_JSON_READ_H
#define TANDEM_LAB_JSON_READ_H

#include "sched/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Where a value is, for reasons: "file.json:12" and the member's name. */
struct json_place {
    const char *file;
    int line; /* of the object's line in JSONL; 0 = whole file */
};

enum status json_fail(const struct json_place *at, const char *member, const char *expected, struct why *why);

/* The value of a whole file, or of stdin for "-"; the caller releases it. STATUS_IO, or STATUS_BAD_INPUT with
 * the line. */
enum status json_read_file(const char *path, json_t **out, struct why *why);

/* A whole number in [low, high]; absent or null: *out unchanged unless required. */
enum status json_read_int(const struct json_place *at, const json_t *object, const char *member,
                          bool required, int64_t low, int64_t high, int64_t *out, struct why *why);

/* An array of int32 in [low, high] into malloc'ed *out; absent or null: *out = NULL, *n = -1 unless required.
 */
enum status json_read_ints(const struct json_place *at, const json_t *object, const char *member,
                           bool required, int64_t low, int64_t high, int32_t **out, int32_t *n,
                           struct why *why);

/* Every member must be one of `known` (NULL-terminated). */
enum status json_check_members(const struct json_place *at, const json_t *object, const char *const *known,
                               struct why *why);

#endif
