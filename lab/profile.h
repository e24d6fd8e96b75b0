/* profile: GPU profiles, sim/gpus/NAME.ini, into struct gpu. */
#ifndef TANDEM_LAB_PROFILE_H
#define TANDEM_LAB_PROFILE_H

#include "sched/gpu.h"

/* Loads a profile by name ("h200") or by path (anything with a '/' or ending in ".ini"). Names are looked up
 * in $TANDEM_GPU_DIR, else beside the executable in sim/gpus, else in ./sim/gpus. Every key is required once;
 * unknown keys and senseless values are errors that name file, line and key. STATUS_UNKNOWN_NAME lists the
 * known names. */
enum status profile_load(const char *name_or_path, struct gpu *out, struct why *why);

/* Names of the profiles found, sorted; *names and each of its n strings belong to the caller
 * (profile_names_free). */
enum status profile_names(char ***names, int32_t *n, struct why *why);
void profile_names_free(char **names, int32_t n);

#endif
