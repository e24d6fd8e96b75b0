#include "lab/timeline.h"

const char *timeline_role(const struct plan *p, const struct span *s)
{
    if (s->is_merge) return "merge";
    return kernel_row((enum kernel_id)p->items[s->item].kernel)->role == ROLE_DECODE ? "decode" : "prefill";
}

void timeline_write_csv(FILE *out, const struct plan *p, const struct span *spans, int64_t n)
{
    fputs("grid,cta,item,role,sm,slot,begin_ns,end_ns,row_group,kv_head,row_begin,row_end,kv_begin,kv_end\n",
          out);
    for (int64_t i = 0; i < n; i++) {
        const struct span *s = &spans[i];
        fprintf(out, "%d,%d,%d,%s,%d,%d,%.3f,%.3f,", s->grid, s->cta, s->item, timeline_role(p, s), s->sm,
                s->slot, s->begin_ns, s->end_ns);
        if (s->is_merge) {
            const struct merge *m = &p->merges[s->item];
            fprintf(out, "%d,%d,%d,%d,,\n", m->request, m->kv_head, m->row_begin, m->row_end);
        } else {
            const struct item *x = &p->items[s->item];
            fprintf(out, "%d,%d,%d,%d,%d,%d\n", x->group, x->kv_head, x->row_begin, x->row_end, x->kv_begin,
                    x->kv_end);
        }
    }
}

/* Times are microseconds with all digits kept; nanoseconds are in the arguments too. */
static void write_event(FILE *out, const struct plan *p, const struct span *s)
{
    fprintf(out,
            "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.6f,\"dur\":%.6f,\"args\":{\"grid\":"
            "%d,\"cta\":%d,",
            timeline_role(p, s), s->sm, s->slot, s->begin_ns / 1e3, (s->end_ns - s->begin_ns) / 1e3, s->grid,
            s->cta);
    if (s->is_merge) {
        const struct merge *m = &p->merges[s->item];
        fprintf(out, "\"merge\":%d,\"request\":%d,\"kv_head\":%d,\"rows\":\"%d..%d\"}},\n", s->item,
                m->request, m->kv_head, m->row_begin, m->row_end);
    } else {
        const struct item *x = &p->items[s->item];
        fprintf(out,
                "\"item\":%d,\"row_group\":%d,\"kv_head\":%d,\"rows\":\"%d..%d\",\"keys\":\"%d..%d\"}},\n",
                s->item, x->group, x->kv_head, x->row_begin, x->row_end, x->kv_begin, x->kv_end);
    }
}

void timeline_write_trace(FILE *out, const struct plan *p, const struct sim_result *r)
{
    int32_t sms = 0;
    for (int64_t i = 0; i < r->n_spans; i++)
        if (r->spans[i].sm >= sms) sms = r->spans[i].sm + 1;
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n", out);
    for (int32_t sm = 0; sm < sms; sm++)
        fprintf(out, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"SM %03d\"}},\n",
                sm, sm);
    for (int64_t i = 0; i < r->n_spans; i++)
        write_event(out, p, &r->spans[i]);
    for (int64_t i = 0; i < r->n_samples; i++) {
        const struct sim_sample *s = &r->samples[i];
        fprintf(out,
                "{\"name\":\"resident CTAs\",\"ph\":\"C\",\"pid\":%d,\"ts\":%.6f,\"args\":{\"ctas\":%d}},\n"
                "{\"name\":\"tensor %%\",\"ph\":\"C\",\"pid\":%d,\"ts\":%.6f,\"args\":{\"percent\":%.3f}},\n"
                "{\"name\":\"HBM GB/s\",\"ph\":\"C\",\"pid\":%d,\"ts\":%.6f,\"args\":{\"GB/s\":%.3f}},\n",
                sms, s->ns / 1e3, s->resident_ctas, sms, s->ns / 1e3, 100 * s->tensor_frac, sms, s->ns / 1e3,
                s->hbm_bytes_per_ns);
    }
    fprintf(out, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"chip\"}}\n]}\n",
            sms);
}
