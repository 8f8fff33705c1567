/* The options that users give to sbatch, salloc and srun. */
#ifndef SLURMCKPT_OPTIONS_H
#define SLURMCKPT_OPTIONS_H

#include <stdbool.h>

#include <slurm/spank.h>

enum option {
	OPTION_INTERVAL,
	OPTION_DIR,
	OPTION_KEEP,
	OPTION_RECOVER,
	OPTION_MODEL,
	OPTION_FRESH,
	OPTION_PRE,
	OPTION_POST,
	OPTION_RESTORED,
	OPTION_COUNT,
};

/* Registers all options; for slurm_spank_init in every context. */
void options_register(spank_t spank);

/* "checkpoint-interval" and so on. */
const char *options_name(enum option option);

/* True when any option was given, on the command line or through the environment of the job. */
bool options_any(void);

/* True when the interval in force is `off`. A step's own --checkpoint-interval comes last and so wins. */
bool options_off(void);

#endif
