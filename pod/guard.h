/* Waiting for a program (CRIU) that holds the processes of a pod still: whoever fails meanwhile, they go on. */
#ifndef SLURMCKPT_GUARD_H
#define SLURMCKPT_GUARD_H

#include <sys/types.h>

struct guard {
	int channel;	/* the program's connection to the coordinator, or -1: nothing is guarded */
	int beat;	/* the coordinator writes here for as long as it is well */
	pid_t pod_init;	/* of a pod to end with a coordinator that is not well, or -1 */
};

#define GUARD_NONE {.channel = -1, .beat = -1, .pod_init = -1}

/*
 * Returns the wait status of the program. It is to end when the coordinator is gone, does not write for GUARD_PATIENCE_MS, or sends
 * SIGTERM: then its connection is shut down, at which CRIU undoes what it has begun, and if that takes too long it is killed. Without a
 * guard SIGTERM is passed on. All signals must be blocked.
 *
 * A restore cannot be undone that way: CRIU does not heed a "no" to its last question, and the processes would run with nobody to stand in
 * for them. There the pod is ended when the coordinator does not write; when it is gone, pod init sees to that.
 */
int guard_wait(pid_t program, const struct guard *guard);

#endif
