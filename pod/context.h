/* The surroundings of a task, taken from its shim by a process that is still root and still outside the pod. */
#ifndef SLURMCKPT_CONTEXT_H
#define SLURMCKPT_CONTEXT_H

#include <sys/types.h>

#include "reason.h"

/*
 * Joins the mount namespace of shim, and takes over what a process without privileges could not: hard limits, nice value and the OOM
 * adjustment. Refuses a shim whose user, PID, network or UTS namespace is another one.
 */
int context_adopt(pid_t shim, struct reason *reason);

#endif
