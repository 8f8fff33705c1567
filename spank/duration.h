/* TIME: how long, as users write it. Knows nothing of Slurm's API. */
#ifndef SLURMCKPT_DURATION_H
#define SLURMCKPT_DURATION_H

#include <stdbool.h>
#include <stdint.h>

#define DURATION_MIN_SECONDS INT64_C(1)
#define DURATION_MAX_SECONDS (INT64_C(3650) * 86400)

/*
 * Seconds of `90s`, `10m`, `1h30m`, `2d` (units in falling order, each once, either case), or of a form of Slurm's
 * --time: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S. False when text is neither, or outside the limits above.
 * The same grammar as parse_interval() in slurmckpt/units.py; a test holds the two together.
 */
bool duration_parse(const char *text, int64_t *seconds);

#endif
