/* What a CRIU that was killed in the middle of a dump has left in the processes of a pod. */
#ifndef SLURMCKPT_SANE_H
#define SLURMCKPT_SANE_H

#include <stdbool.h>

/*
 * For a process inside the pod (PID and mount namespace), as root. The kernel lets all processes go when their tracer dies, and CRIU's code
 * in them leaves by itself when its socket ends. Returns false when a process cannot be saved: a TCP socket is in repair mode (its owner,
 * which runs again, has got an error from it, or has put what it sent into its own receive queue), or CRIU's code is still there after a while.
 */
bool pod_is_sane(void);

#endif
