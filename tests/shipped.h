/* shipped: the policies that come with tandem. Tests of what these promise loop over this list; generic tests, which
 * every policy must pass, loop over the registry. */
#ifndef TANDEM_TESTS_SHIPPED_H
#define TANDEM_TESTS_SHIPPED_H

#include <stdbool.h>
#include <string.h>

static const struct {
    const char *name;
    bool has_heap; /* keeps workers in a heap: more time an item in `make bench` */
} shipped[] = {{"unified", false},    {"serial", true},      {"streams", true},       {"fi_decode", false},
               {"fi_prefill", false}, {"fi_sm90", true},     {"fi_batch_pod", false}, {"fi_holistic", true},
               {"fa2_splits", false}, {"fa3_splits", false}, {"fa3_varlen", false},   {"pod", false},
               {"warp_fused", false}, {"stream_k", false},   {"fixed_split", false},  {"sm_partition", false},
               {"linear_bid", false}, {"page_aware", true}};
enum { N_SHIPPED = sizeof shipped / sizeof shipped[0] };

#endif
