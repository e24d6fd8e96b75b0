/* profile: GPU profiles, sim/gpus/NAME.ini, into struct gpu. */
#ifndef TANDEM_LAB_PROFILE_H
#define TANDEM_LAB_PROFILE_H

#include "sched/gpu.h"

#include <stdio.h>

/* Loads a profile by name ("h200") or by path (anything with a '/' or ending in ".ini"). Names are looked up
 * in $TANDEM_GPU_DIR, else beside the executable in sim/gpus, else in ./sim/gpus. Every key is required once;
 * unknown keys and senseless values are errors that name file, line and key. STATUS_UNKNOWN_NAME lists the
 * known names. */
enum status profile_load(const char *name_or_path, struct gpu *out, struct why *why);

/* The same from a stream, from where it stands to its end; `path` names it in messages and gives the profile's name. */
enum status profile_read(FILE *file, const char *path, struct gpu *out, struct why *why);

/* Opens the file of a profile, by name or path as above; *path (PROFILE_PATH_MAX) is where it was. */
enum { PROFILE_PATH_MAX = 4200 };
enum status profile_open(const char *name_or_path, char *path, FILE **out, struct why *why);

/* Names of the profiles found, sorted; *names and each of its n strings belong to the caller
 * (profile_names_free). */
enum status profile_names(char ***names, int32_t *n, struct why *why);
void profile_names_free(char **names, int32_t n);

#endif
