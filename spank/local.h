/* Local context: srun. */
#ifndef SLURMCKPT_LOCAL_H
#define SLURMCKPT_LOCAL_H

#include "options.h"

/* srun has taken this value, from its command line or from the environment that sbatch or salloc made. */
void local_option_given(enum option option, const char *value);

/* All options are known: names in one line those that have no effect on a step. */
void local_post_opt(void);

#endif
