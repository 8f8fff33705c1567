/* Remote context: slurmstepd. One decision for each task: the task shim in front of it, or not. */
#ifndef SLURMCKPT_REMOTE_H
#define SLURMCKPT_REMOTE_H

#include <slurm/spank.h>

#include "args.h"

/* In slurmstepd itself, before any task exists. */
void remote_init(void);

/* In the task, as root: opens what needs root. */
void remote_task_init_privileged(spank_t spank, const struct plugin_args *args);

/* In the task, as the user, after every plugin that stands before this one in plugstack.conf: decides. */
void remote_task_init(spank_t spank);

#endif
