#include "local.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "values.h"

/* One bit for each option whose last value differs from the job's. Callbacks have no handle to hang it on. */
static unsigned differs;

/*
 * What the job itself was given: sbatch and salloc put each option into the job's environment under this name, and
 * srun reads it from there (spank_process_env_options). srun's environment is the user's own.
 */
static const char *job_value(enum option option)
{
	char name[128];
	int length = snprintf(name, sizeof(name), "SLURM_SPANK__SLURM_SPANK_OPTION_slurmckpt_%s", options_name(option));

	for (int i = 0; i < length && i < (int)sizeof(name) - 1; i++) {
		if (!isalnum((unsigned char)name[i]))
			name[i] = '_';
	}
	return getenv(name);
}

void local_option_given(enum option option, const char *value)
{
	const char *job = job_value(option);
	struct interval interval;
	bool same;

	/* Not inside an allocation: srun makes its own, and these are the options of that job. */
	if (!getenv("SLURM_JOB_ID"))
		return;
	if (option == OPTION_FRESH)
		same = job != NULL;
	else
		same = job && strcmp(job, value) == 0;
	/* `off` is the one thing that a step may decide for itself. */
	if (option == OPTION_INTERVAL && interval_parse(value, &interval) && interval.kind == INTERVAL_OFF)
		same = true;
	differs = same ? differs & ~(1u << option) : differs | 1u << option;
}

void local_post_opt(void)
{
	static bool said;
	char names[256] = "";
	size_t used = 0;

	/* Outside an allocation srun makes a job of its own. It comes here once for each of its components. */
	if (!getenv("SLURM_JOB_ID") && options_any() && !options_off() && !said) {
		slurm_info("slurmckpt: no checkpoints for this job: only batch jobs (sbatch) can be requeued and restored");
		said = true;
	}
	for (int i = 0; i < OPTION_COUNT; i++) {
		if (differs & 1u << i)
			used += (size_t)snprintf(names + used, sizeof(names) - used, "%s--%s", used ? ", " : "",
						 options_name((enum option)i));
	}
	if (differs)
		slurm_info("slurmckpt: %s: checkpoints are set for the whole job, by sbatch or salloc; ignored for this "
			   "step",
			   names);
	differs = 0; /* srun calls this once for each component of a heterogeneous step */
}
