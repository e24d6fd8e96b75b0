/* generators: named, seeded workloads. */
#ifndef TANDEM_LAB_GENERATORS_H
#define TANDEM_LAB_GENERATORS_H

#include "lab/workload.h"

int32_t generator_count(void);
const char *generator_name(int32_t i);
const char *generator_brief(int32_t i);

#endif
