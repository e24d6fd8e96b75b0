#include "lab/profile_write.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* "  key = value ; comment" -> is it `key`'s line? */
static bool is_key(const char *line, const char *key)
{
    const size_t n = strlen(key);
    line += strspn(line, " \t");
    return strncmp(line, key, n) == 0 && line[n + strspn(line + n, " \t")] == '=';
}

static void enter_section(const char *line, char section[32])
{
    const char *end = strchr(line, ']');
    if (line[0] != '[' || !end || end - line > 31) return;
    memcpy(section, line + 1, (size_t)(end - line - 1));
    section[end - line - 1] = '\0';
}

static void write_line(FILE *out, const char *line, const struct profile_value *v)
{
    char left[224];
    if (!v) {
        fputs(line, out);
        return;
    }
    snprintf(left, sizeof left, "%s = %s", v->key, v->text);
    fprintf(out, "%-28s ; [measured] %s\n", left, v->note);
}

enum status profile_rewrite(FILE *base, const char *name, const char *header,
                            const struct profile_value *values, int32_t n, FILE *out, struct why *why)
{
    char *line = NULL, section[32] = "";
    size_t size = 0;
    int32_t written = 0;
    bool head = true;
    fputs(header, out);
    while (getline(&line, &size, base) > 0) {
        const struct profile_value *v = NULL;
        if (head && line[0] == ';') continue;
        head = false;
        enter_section(line, section);
        for (int32_t i = 0; i < n && !v; i++)
            if (strcmp(section, values[i].section) == 0 && is_key(line, values[i].key)) v = &values[i];
        written += v != NULL;
        write_line(out, line, v);
    }
    free(line);
    if (written != n)
        return status_fail(why, STATUS_BAD_INPUT, "%.100s: has %d of the %d keys that were measured", name,
                           written, n);
    return STATUS_OK;
}

struct list {
    struct profile_value *values;
    int32_t n;
};

static void add(struct list *l, const char *section, const char *key, const char *note, const char *format,
                ...) __attribute__((format(printf, 5, 6)));

static void add(struct list *l, const char *section, const char *key, const char *note, const char *format,
                ...)
{
    struct profile_value *v = &l->values[l->n++];
    va_list args;
    v->section = section;
    v->key = key;
    snprintf(v->note, sizeof v->note, "%s", note);
    va_start(args, format);
    vsnprintf(v->text, sizeof v->text, format, args);
    va_end(args);
}

/* The map of GPCs, where clusters found every SM. */
static void add_gpcs(struct list *l, const struct probe *p)
{
    char text[160] = "";
    int32_t sms = 0;
    size_t used = 0;
    for (int32_t i = 0; i < p->n_gpcs; i++) {
        sms += p->gpc_sms[i];
        if (used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", i ? " " : "", p->gpc_sms[i]);
    }
    if (sms == p->card.sm_count && p->n_gpcs <= GPU_MAX_GPCS && used < sizeof text)
        add(l, "gpu", "gpc_sms", "SMs that shared a cluster", "%s", text);
}

static double most_of(const struct probe_curve *c)
{
    double most = 0;
    for (int32_t i = 0; i < c->n; i++)
        most = fmax(most, c->y[i].value);
    return most;
}

static void add_memory(struct list *l, const struct probe *p, const struct gpu *base)
{
    const double most = fmax(most_of(&p->hbm_by_sms), most_of(&p->hbm_by_bytes));
    const bool above = most > base->peak_hbm_bytes_per_ns;
    add(l, "memory", "hbm_bytes_per_ns",
        above ? "reads by all SMs, held to the published peak" : "reads by all SMs, best of the curve",
        "%.0f", above ? base->peak_hbm_bytes_per_ns : most);
    if (p->hbm_by_sms.n && p->hbm_by_sms.x[0] == 1)
        add(l, "memory", "sm_bytes_per_ns", "reads by one SM, 1024 threads x 128 bytes", "%.1f",
            p->hbm_by_sms.y[0].value);
    add(l, "memory", "latency_ns", "bytes in flight over rate of one SM, 16 KB in flight", "%.0f",
        p->stream_latency_ns.value);
    if (p->l2_bytes > 0) add(l, "memory", "l2_bytes", "driver", "%lld", (long long)p->l2_bytes);
}

int32_t profile_of_probe(const struct probe *p, const struct gpu *base,
                         struct profile_value values[PROFILE_PROBED])
{
    struct list l = {values, 0};
    add(&l, "gpu", "cc_major", "driver", "%d", p->card.cc_major);
    add(&l, "gpu", "cc_minor", "driver", "%d", p->card.cc_minor);
    add(&l, "gpu", "sm_count", "driver", "%d", p->card.sm_count);
    add_gpcs(&l, p);
    add(&l, "sm", "max_threads_per_sm", "driver", "%d", p->max_threads_per_sm);
    add(&l, "sm", "max_ctas_per_sm", "driver", "%d", p->max_ctas_per_sm);
    add(&l, "sm", "registers_per_sm", "driver", "%d", p->registers_per_sm);
    add(&l, "sm", "smem_per_sm_bytes", "driver", "%d", p->smem_per_sm_bytes);
    add(&l, "sm", "smem_optin_bytes", "driver", "%d", p->smem_optin_bytes);
    add_memory(&l, p, base);
    add(&l, "overhead", "launch_ns", "kernel to dependent kernel of a stream", "%.0f",
        p->launch_gap_ns.value);
    add(&l, "overhead", "cta_start_ns", "turnaround at 16 KB + a dependent load from HBM", "%.0f",
        fmax(0, p->turnaround_ns[1].value) + p->hbm_latency_ns.value);
    return l.n;
}
