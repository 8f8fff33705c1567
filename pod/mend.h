/* What a CRIU that was killed in the middle of a dump leaves undone. */
#ifndef SLURMCKPT_MEND_H
#define SLURMCKPT_MEND_H

#include <stdbool.h>

/*
 * For a process inside the pod (PID and mount namespace), as root. The kernel lets all processes go when their tracer dies, and CRIU's code
 * in them leaves by itself when its socket ends. What remains is taken back here: TCP sockets in repair mode, which would send nothing any
 * more. Returns false when CRIU's code is still in a process after a while: that process cannot be saved.
 */
bool mend_pod(void);

#endif
