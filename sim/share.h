/* share: how fast resident items progress when they compete. Two levels:
 *
 *   in an SM     all residents slow down together (one level) until no pipe and no byte limit of the SM is
 *                exceeded; those that use the exceeded resource stop there, the others go on up to full speed
 *   over HBM     max-min, weighted by bytes in flight: item i gets min(what it asks, level x weight i). A
 *                compute-bound item that asks little is not slowed when streaming items fill the memory
 *
 * Rates are fractions of alone speed, in (0, 1]. */
#ifndef TANDEM_SIM_SHARE_H
#define TANDEM_SIM_SHARE_H

#include "sim/demand.h"

/* Consuming items as parallel arrays, so that the passes over them are plain loops. */
struct consumers {
    int32_t n;
    double *left_ns; /* alone time still to do */
    double *local;   /* rate its SM allows */
    double *rate;    /* rate now: min(local, HBM share) */
    double *hbm;     /* demand at rate 1, bytes/ns */
    double *weight;  /* bytes in flight / latency, bytes/ns */
};

/* Rates of the items on one SM by its own limits: demands[0 .. n), n >= 0, into local[0 .. n). */
void share_sm(const struct demand *const *demands, int32_t n, double sm_bytes_per_ns, double *local);

/* Sets c->rate from c->local under the HBM limit. *level is the water level of the last call and a good start
 * for this one (any positive value is right, INFINITY at first); it is left at INFINITY when HBM does not
 * bind. Returns HBM bytes per ns in use. */
double share_hbm(struct consumers *c, double hbm_bytes_per_ns, double *level);

#endif
