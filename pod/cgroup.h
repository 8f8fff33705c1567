/* Control groups, by the path of their cgroup.procs file. */
#ifndef SLURMCKPT_CGROUP_H
#define SLURMCKPT_CGROUP_H

#include "reason.h"

/* Moves this process into the group. */
int cgroup_join(const char *procs_file, struct reason *reason);

#endif
