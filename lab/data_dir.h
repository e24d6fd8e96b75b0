/* data_dir: where the files beside the program are (GPU profiles, plot scripts). */
#ifndef TANDEM_LAB_DATA_DIR_H
#define TANDEM_LAB_DATA_DIR_H

#include <stddef.h>

/* Writes the directory for `subdir` ("sim/gpus", "plots"): the environment variable `env` if set, else beside
 * the executable, else below the working directory. Truncates never: returns 0, or -1 if it does not fit. */
int data_dir(const char *env, const char *subdir, char *out, size_t size);

/* The same for one file, `name` in that directory. */
int data_file(const char *env, const char *subdir, const char *name, char *out, size_t size);

#endif
