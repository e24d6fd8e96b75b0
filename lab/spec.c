#include "lab/spec.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct parser {
    const char *spec, *at;
    struct why *why;
};

static enum status expected(const struct parser *p, const char *what)
{
    if (*p->at == '\0')
        return status_fail(p->why, STATUS_BAD_INPUT, "spec '%.60s': ends at %d: expected %s", p->spec,
                           (int)(p->at - p->spec), what);
    return status_fail(p->why, STATUS_BAD_INPUT, "spec '%.60s': '%c' at %d: expected %s", p->spec, *p->at,
                       (int)(p->at - p->spec), what);
}

/* Digits, with an optional k when a length. */
static enum status number(struct parser *p, bool length, int32_t low, int32_t *out)
{
    int64_t x = 0;
    if (!isdigit((unsigned char)*p->at)) return expected(p, "a number");
    for (; isdigit((unsigned char)*p->at); p->at++) {
        x = x * 10 + (*p->at - '0');
        if (x > INT32_MAX) return expected(p, "a number below 2^31");
    }
    if (length && *p->at == 'k') {
        x *= 1024;
        p->at++;
    }
    if (x < low || x > INT32_MAX)
        return status_fail(p->why, STATUS_BAD_INPUT,
                           "spec '%.60s': number before position %d: expected %d..%d", p->spec,
                           (int)(p->at - p->spec), low, INT32_MAX);
    *out = (int32_t)x;
    return STATUS_OK;
}

/* One part between underscores. */
static enum status part(struct parser *p, int32_t *count, int32_t *qo_len, int32_t *kv_len)
{
    *count = 1;
    if (isdigit((unsigned char)*p->at)) TRY(number(p, false, 1, count));
    if (*p->at != 'q') return expected(p, "'q'");
    p->at++;
    TRY(number(p, true, 1, qo_len));
    *kv_len = *qo_len;
    if (*p->at == 's') {
        p->at++;
        TRY(number(p, true, 0, kv_len));
    }
    if (*p->at != '\0' && *p->at != '_') return expected(p, "'_', 's<kv_len>' or the end");
    return STATUS_OK;
}

static enum status append(struct parser *p, int32_t count, int32_t qo, int32_t kv, int32_t **qo_len,
                          int32_t **kv_len, int32_t *n)
{
    if ((int64_t)*n + count > SPEC_MAX_REQUESTS)
        return status_fail(p->why, STATUS_TOO_LARGE, "spec '%.60s': more than %d requests", p->spec,
                           SPEC_MAX_REQUESTS);
    const size_t bytes = (size_t)(*n + count) * sizeof(int32_t);
    int32_t *q = realloc(*qo_len, bytes);
    if (q) *qo_len = q;
    int32_t *k = realloc(*kv_len, bytes);
    if (k) *kv_len = k;
    if (!q || !k) return status_fail(p->why, STATUS_NO_MEMORY, "out of memory");
    for (int32_t i = 0; i < count; i++) {
        q[*n] = qo;
        k[(*n)++] = kv;
    }
    return STATUS_OK;
}

enum status spec_parse(const char *spec, int32_t **qo_len, int32_t **kv_len, int32_t *n, struct why *why)
{
    struct parser p = {spec, spec, why};
    enum status status;
    *qo_len = *kv_len = NULL;
    *n = 0;
    do {
        int32_t count, qo, kv;
        status = part(&p, &count, &qo, &kv);
        if (status == STATUS_OK) status = append(&p, count, qo, kv, qo_len, kv_len, n);
    } while (status == STATUS_OK && *p.at++ == '_');
    if (status == STATUS_OK) return STATUS_OK;
    free(*qo_len);
    free(*kv_len);
    *qo_len = *kv_len = NULL;
    *n = 0;
    return status;
}

static int format_length(char *out, size_t size, char letter, int32_t x)
{
    if (x >= 1024 && x % 1024 == 0) return snprintf(out, size, "%c%dk", letter, x / 1024);
    return snprintf(out, size, "%c%d", letter, x);
}

int spec_format(const int32_t *qo_len, const int32_t *kv_len, int32_t n, char *out, size_t size)
{
    size_t used = 0;
    if (size == 0) return -1;
    out[0] = '\0';
    for (int32_t i = 0; i < n;) {
        char text[64] = "";
        int32_t end = i + 1;
        while (end < n && qo_len[end] == qo_len[i] && kv_len[end] == kv_len[i])
            end++;
        int len = i ? snprintf(text, sizeof text, "_") : 0;
        if (end - i > 1) len += snprintf(text + len, sizeof text - (size_t)len, "%d", end - i);
        len += format_length(text + len, sizeof text - (size_t)len, 'q', qo_len[i]);
        if (kv_len[i] != qo_len[i])
            len += format_length(text + len, sizeof text - (size_t)len, 's', kv_len[i]);
        if (used + (size_t)len >= size) return -1;
        memcpy(out + used, text, (size_t)len + 1);
        used += (size_t)len;
        i = end;
    }
    return 0;
}
