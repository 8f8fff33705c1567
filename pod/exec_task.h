/* Turning the calling process, which already has the user's rights and no others, into the task that a payload describes. */
#ifndef SLURMCKPT_EXEC_TASK_H
#define SLURMCKPT_EXEC_TASK_H

#include <stddef.h>

/*
 * payload_fd and fds (in the order of the payload's fds=) come from the shim. Ends in the task's program; every failure is one line on the
 * task's standard error and exit code 1, or what slurmstepd would have done. All signals must be blocked when this is called.
 */
_Noreturn void exec_task(int payload_fd, int *fds, size_t fd_count);

#endif
