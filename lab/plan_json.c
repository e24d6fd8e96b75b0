#include "lab/plan_json.h"

#include "lab/json_read.h"

#include <stdlib.h>
#include <string.h>

/* The format, version 1:
 *   {"tandem_plan": 1, "gpu": .., "policy": .., "n_requests": n, "partial_rows": n, "workspace_bytes": n,
 *    "grids": [{"kernel": "name", "n_ctas": n, "stream": n, "after": [..], "dispatch":
 * "fixed|queue|sm_ticket", "list_indptr": [..], "remap": [kind, n_prefill, n_decode] | "ticket": [kind,
 * n_prefill, n_decode] | "home": [..], "steal": [..]}], "items": [[group, kv_head, row_begin, row_end,
 * kv_begin, kv_end, partial, "kernel", flags], ..], "groups": [[[request, token_begin, token_end], ..], ..],
 *    "merges": [[request, kv_head, row_begin, row_end, row_order, [sources]], ..]} */
enum { FORMAT_VERSION = 1 };

static const char *const dispatch_names[] = {"fixed", "queue", "sm_ticket"};

/* ---- writing
 * -------------------------------------------------------------------------------------------------------- */

static void write_ints(FILE *out, const int32_t *values, int64_t n)
{
    fputc('[', out);
    for (int64_t i = 0; i < n; i++)
        fprintf(out, "%s%d", i ? "," : "", values[i]);
    fputc(']', out);
}

static void write_grid(const struct plan *p, const struct grid *g, FILE *out)
{
    fprintf(out, "{\"kernel\": \"%s\", \"n_ctas\": %d, \"stream\": %d, \"after\": ",
            kernel_row((enum kernel_id)g->kernel)->name, g->n_ctas, g->stream);
    write_ints(out, p->after + g->after_begin, g->after_end - g->after_begin);
    fprintf(out, ", \"dispatch\": \"%s\", \"list_indptr\": ", dispatch_names[g->dispatch]);
    write_ints(out, p->list_indptr + g->list_begin, (int64_t)g->n_lists + 1);
    if (g->dispatch == DISPATCH_FIXED) {
        fprintf(out, ", \"remap\": [%d,%d,%d]}", g->remap.kind, g->remap.n_prefill, g->remap.n_decode);
    } else if (g->dispatch == DISPATCH_SM_TICKET) {
        fprintf(out, ", \"ticket\": [%d,%d,%d]}", g->ticket.kind, g->ticket.n_prefill, g->ticket.n_decode);
    } else {
        fputs(", \"home\": ", out);
        write_ints(out, p->home + g->home_begin, g->n_ctas);
        fputs(", \"steal\": ", out);
        write_ints(out, p->steal + g->steal_begin, (int64_t)g->n_lists * g->n_lists);
        fputc('}', out);
    }
}

static void write_items(const struct plan *p, FILE *out)
{
    fputs("],\n\"items\": [", out);
    for (int32_t i = 0; i < p->n_items; i++) {
        const struct item *x = &p->items[i];
        fprintf(out, "%s[%d,%d,%d,%d,%d,%d,%d,\"%s\",%d]", i ? ",\n" : "\n", x->group, x->kv_head,
                x->row_begin, x->row_end, x->kv_begin, x->kv_end, x->partial,
                kernel_row((enum kernel_id)x->kernel)->name, x->flags);
    }
}

static void write_groups(const struct plan *p, FILE *out)
{
    fputs("],\n\"groups\": [", out);
    for (int32_t g = 0; g < plan_n_groups(p); g++) {
        fputs(g ? ",\n[" : "\n[", out);
        for (int32_t m = p->group_indptr[g]; m < p->group_indptr[g + 1]; m++)
            fprintf(out, "%s[%d,%d,%d]", m > p->group_indptr[g] ? "," : "", p->members[m].request,
                    p->members[m].token_begin, p->members[m].token_end);
        fputc(']', out);
    }
}

static void write_merges(const struct plan *p, FILE *out)
{
    fputs("],\n\"merges\": [", out);
    for (int32_t m = 0; m < p->n_merges; m++) {
        const struct merge *x = &p->merges[m];
        fprintf(out, "%s[%d,%d,%d,%d,%d,", m ? ",\n" : "\n", x->request, x->kv_head, x->row_begin, x->row_end,
                x->row_order);
        write_ints(out, p->merge_src + p->merge_indptr[m], p->merge_indptr[m + 1] - p->merge_indptr[m]);
        fputc(']', out);
    }
}

enum status plan_json_write(const struct plan *p, const char *gpu, const char *policy, FILE *out,
                            struct why *why)
{
    fprintf(out,
            "{\"tandem_plan\": %d, \"gpu\": \"%s\", \"policy\": \"%s\", \"n_requests\": %d, "
            "\"partial_rows\": %d, "
            "\"workspace_bytes\": %lld,\n\"grids\": [",
            FORMAT_VERSION, gpu, policy, p->n_requests, p->partial_rows, (long long)p->workspace_bytes);
    for (int32_t g = 0; g < p->n_grids; g++) {
        fputs(g ? ",\n" : "\n", out);
        write_grid(p, &p->grids[g], out);
    }
    write_items(p, out);
    write_groups(p, out);
    write_merges(p, out);
    fputs("]}\n", out);
    return ferror(out) ? status_fail(why, STATUS_IO, "plan: write error") : STATUS_OK;
}

/* ---- reading
 * -------------------------------------------------------------------------------------------------------- */

struct reading {
    struct json_place at;
    struct why *why;
};

static enum status bad(const struct reading *r, const char *array, size_t i, const char *expected)
{
    char name[64];
    snprintf(name, sizeof name, "%s[%zu]", array, i);
    return json_fail(&r->at, name, expected, r->why);
}

/* n whole 32-bit numbers of an array, from entry 0. */
static bool row_ints(const json_t *row, size_t n, int32_t *out)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *x = json_array_get(row, i);
        if (!json_is_integer(x) || json_integer_value(x) < INT32_MIN || json_integer_value(x) > INT32_MAX)
            return false;
        out[i] = (int32_t)json_integer_value(x);
    }
    return true;
}

static const struct kernel *row_kernel(const json_t *name)
{
    return json_is_string(name) ? kernel_find(json_string_value(name)) : NULL;
}

/* Appends an array member of a grid object to one of the plan's flat arrays. */
static enum status grid_ints(const struct reading *r, const json_t *grid, const char *member, bool required,
                             int32_t **values, int32_t *n)
{
    TRY(json_read_ints(&r->at, grid, member, required, INT32_MIN, INT32_MAX, values, n, r->why));
    return STATUS_OK;
}

static enum status read_triple(const struct reading *r, const json_t *grid, const char *member,
                               int32_t out[3])
{
    const json_t *array = json_object_get(grid, member);
    if (!json_is_array(array) || json_array_size(array) != 3 || !row_ints(array, 3, out))
        return json_fail(&r->at, member, "[kind, n_prefill, n_decode]", r->why);
    return STATUS_OK;
}

static int32_t find_dispatch(const json_t *name)
{
    for (int32_t d = 0; json_is_string(name) && d < DISPATCH_COUNT; d++)
        if (strcmp(json_string_value(name), dispatch_names[d]) == 0) return d;
    return -1;
}

/* Flat arrays of the plan grow through the same calls that planners use. */
static enum status append_lists(struct plan *p, const int32_t *indptr, int32_t n)
{
    struct grid *g = &p->grids[p->n_grids - 1];
    if (n < 1) return STATUS_BAD_INPUT;
    p->list_indptr[g->list_begin] = indptr[0];
    for (int32_t l = 1; l < n; l++) {
        TRY(plan_end_list(p));
        p->list_indptr[p->n_list_indptr - 1] = indptr[l];
    }
    return STATUS_OK;
}

static enum status read_queue_arrays(const struct reading *r, const json_t *object, struct plan *p,
                                     int32_t n_ctas)
{
    int32_t *home = NULL, *steal = NULL, n_home, n_steal;
    const int64_t lists = p->grids[p->n_grids - 1].n_lists;
    enum status status = grid_ints(r, object, "home", true, &home, &n_home);
    if (status == STATUS_OK) status = grid_ints(r, object, "steal", true, &steal, &n_steal);
    if (status == STATUS_OK && n_home != n_ctas)
        status = json_fail(&r->at, "home", "one queue a CTA", r->why);
    if (status == STATUS_OK && n_steal != lists * lists)
        status = json_fail(&r->at, "steal", "lists x lists entries", r->why);
    if (status == STATUS_OK) status = plan_set_home(p, home, n_home);
    if (status == STATUS_OK) status = plan_set_steal(p, steal, (int32_t)lists);
    free(home);
    free(steal);
    return status;
}

static const char *const grid_keys[] = {"kernel", "n_ctas", "stream", "after", "dispatch", "list_indptr",
                                        "remap",  "ticket", "home",   "steal", NULL};

static enum status read_grid_arrays(const struct reading *r, const json_t *object, struct plan *p)
{
    int32_t *values = NULL, n;
    TRY(grid_ints(r, object, "after", false, &values, &n));
    enum status status = STATUS_OK;
    for (int32_t i = 0; i < n && status == STATUS_OK; i++)
        status = plan_add_after(p, values[i]);
    free(values);
    TRY(status);
    TRY(grid_ints(r, object, "list_indptr", true, &values, &n));
    status = append_lists(p, values, n);
    free(values);
    return status == STATUS_BAD_INPUT ? json_fail(&r->at, "list_indptr", "at least one entry", r->why)
                                      : status;
}

static enum status read_grid(const struct reading *r, const json_t *object, struct plan *p)
{
    int64_t n_ctas = 0, stream = 0;
    int32_t triple[3];
    struct grid *g;
    TRY(json_check_members(&r->at, object, grid_keys, r->why));
    const struct kernel *k = row_kernel(json_object_get(object, "kernel"));
    const int32_t dispatch = find_dispatch(json_object_get(object, "dispatch"));
    if (!k) return json_fail(&r->at, "grid kernel", "a name of the kernel table", r->why);
    if (dispatch < 0) return json_fail(&r->at, "dispatch", "fixed, queue or sm_ticket", r->why);
    TRY(json_read_int(&r->at, object, "n_ctas", true, INT32_MIN, INT32_MAX, &n_ctas, r->why));
    TRY(json_read_int(&r->at, object, "stream", true, INT32_MIN, INT32_MAX, &stream, r->why));
    TRY(plan_begin_grid(p, k->id, (enum dispatch)dispatch, (int32_t)stream, &g));
    TRY(read_grid_arrays(r, object, p));
    g = &p->grids[p->n_grids - 1];
    g->n_ctas = (int32_t)n_ctas;
    if (dispatch == DISPATCH_QUEUE) return read_queue_arrays(r, object, p, g->n_ctas);
    TRY(read_triple(r, object, dispatch == DISPATCH_FIXED ? "remap" : "ticket", triple));
    if (dispatch == DISPATCH_FIXED)
        g->remap = (struct remap){triple[0], triple[1], triple[2]};
    else
        g->ticket = (struct ticket){triple[0], triple[1], triple[2]};
    return STATUS_OK;
}

static enum status read_items(const struct reading *r, const json_t *array, struct plan *p)
{
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *row = json_array_get(array, i), *flags = json_array_get(row, 8);
        const struct kernel *k = row_kernel(json_array_get(row, 7));
        int32_t x[7];
        if (!json_is_array(row) || json_array_size(row) != 9 || !row_ints(row, 7, x) || !k ||
            !json_is_integer(flags) || json_integer_value(flags) < 0 ||
            json_integer_value(flags) > UINT16_MAX)
            return bad(r, "items", i,
                       "[group, kv_head, row_begin, row_end, kv_begin, kv_end, partial, kernel, flags]");
        const struct item item = {
            x[0], x[1], x[2], x[3], x[4], x[5], x[6], (uint16_t)k->id, (uint16_t)json_integer_value(flags)};
        TRY(plan_add_item(p, &item));
    }
    return STATUS_OK;
}

static enum status read_groups(const struct reading *r, const json_t *array, struct plan *p)
{
    for (size_t g = 0; g < json_array_size(array); g++) {
        const json_t *row = json_array_get(array, g);
        const size_t n = json_array_size(row);
        struct member *members = malloc((n + 1) * sizeof *members);
        enum status status = members ? STATUS_OK : STATUS_NO_MEMORY;
        int32_t id;
        for (size_t m = 0; m < n && status == STATUS_OK; m++) {
            int32_t x[3];
            if (json_array_size(json_array_get(row, m)) != 3 || !row_ints(json_array_get(row, m), 3, x))
                status = bad(r, "groups", g, "members [request, token_begin, token_end]");
            else
                members[m] = (struct member){x[0], x[1], x[2]};
        }
        if (status == STATUS_OK) status = plan_add_group(p, members, (int32_t)n, &id);
        free(members);
        TRY(status);
    }
    return STATUS_OK;
}

static enum status read_merges(const struct reading *r, const json_t *array, struct plan *p)
{
    for (size_t m = 0; m < json_array_size(array); m++) {
        const json_t *row = json_array_get(array, m), *sources = json_array_get(row, 5);
        const size_t n = json_array_size(sources);
        int32_t x[5];
        if (json_array_size(row) != 6 || !row_ints(row, 5, x) || !json_is_array(sources) || n > INT32_MAX)
            return bad(r, "merges", m, "[request, kv_head, row_begin, row_end, row_order, [sources]]");
        int32_t *src = malloc((n + 1) * sizeof *src);
        if (!src) return STATUS_NO_MEMORY;
        const struct merge merge = {x[0], x[1], x[2], x[3], x[4]};
        const enum status status = row_ints(sources, n, src)
                                       ? plan_add_merge(p, &merge, src, (int32_t)n)
                                       : bad(r, "merges", m, "sources that are whole numbers");
        free(src);
        TRY(status);
    }
    return STATUS_OK;
}

static const char *const plan_keys[] = {
    "tandem_plan", "gpu",    "policy", "n_requests", "partial_rows", "workspace_bytes", "grids",
    "items",       "groups", "merges", NULL};

static enum status from_json(const struct reading *r, const json_t *root, struct plan *p)
{
    static const char *const arrays[] = {"grids", "items", "groups", "merges"};
    int64_t version, n_requests = 0, partial_rows = 0;
    struct batch empty = {.n_requests = 0};
    TRY(json_check_members(&r->at, root, plan_keys, r->why));
    TRY(json_read_int(&r->at, root, "tandem_plan", true, FORMAT_VERSION, FORMAT_VERSION, &version, r->why));
    TRY(json_read_int(&r->at, root, "n_requests", true, 0, INT32_MAX, &n_requests, r->why));
    TRY(json_read_int(&r->at, root, "partial_rows", true, 0, INT32_MAX, &partial_rows, r->why));
    for (int i = 0; i < 4; i++)
        if (!json_is_array(json_object_get(root, arrays[i])))
            return json_fail(&r->at, arrays[i], "an array", r->why);
    empty.n_requests = (int32_t)n_requests;
    plan_begin(p, &empty);
    TRY(json_read_int(&r->at, root, "workspace_bytes", true, 0, INT64_MAX, &p->workspace_bytes, r->why));
    p->partial_rows = (int32_t)partial_rows;
    const json_t *grids = json_object_get(root, "grids");
    for (size_t g = 0; g < json_array_size(grids); g++)
        TRY(read_grid(r, json_array_get(grids, g), p));
    TRY(read_items(r, json_object_get(root, "items"), p));
    TRY(read_groups(r, json_object_get(root, "groups"), p));
    return read_merges(r, json_object_get(root, "merges"), p);
}

enum status plan_json_read(const char *path, struct plan *out, struct why *why)
{
    const struct reading r = {{path, 0}, why};
    json_t *root;
    memset(out, 0, sizeof *out);
    TRY(json_read_file(path, &root, why));
    const enum status status = from_json(&r, root, out);
    json_decref(root);
    if (status != STATUS_OK) plan_free(out);
    return status == STATUS_NO_MEMORY ? status_fail(why, status, "%.100s: out of memory", path) : status;
}
