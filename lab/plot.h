/* plot: the files behind `compare --plot DIR`, and the gnuplot runs that turn them into pictures.
 *
 * DIR gets compare.csv (result rows), spans_POLICY.csv, work_POLICY.csv (cta,grid,role,work_ns in issue
 * order), and from plots/policies.gp, timeline.gp and work.gp: NAME.png, NAME.svg, NAME.pdf. */
#ifndef TANDEM_LAB_PLOT_H
#define TANDEM_LAB_PLOT_H

#include "lab/commands.h"

/* Makes DIR (and its parents) and finds gnuplot; STATUS_UNSUPPORTED when there is none. */
enum status plot_prepare(const char *dir, struct why *why);

enum status plot_write_plan(const char *dir, const struct workload *w, const struct machine *m,
                            const struct plan *plan, const char *policy, const struct sim_result *s,
                            struct why *why);

enum status plot_draw(const char *dir, const struct rows *rows, bool quiet, struct why *why);

#endif
