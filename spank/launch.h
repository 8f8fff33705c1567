/* Which launch of the batch script a step belongs to: a number that the coordinator gives to the srun it starts. */
#ifndef SLURMCKPT_LAUNCH_H
#define SLURMCKPT_LAUNCH_H

#include <stdint.h>

#include <slurm/spank.h>

enum { LAUNCH_NONE = -1 };

/*
 * The number in the task's environment, or LAUNCH_NONE. Takes it out: a task sees the environment that it would have
 * without us, and an srun that it starts itself does not pass for the one that started it.
 */
int32_t launch_take(spank_t spank);

#endif
