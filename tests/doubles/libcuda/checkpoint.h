/* DOUBLE (simulated device): the driver's checkpoint calls, with the names and arguments of cuda.h. */
#ifndef SIMULATED_CHECKPOINT_H
#define SIMULATED_CHECKPOINT_H

#include <stdbool.h>

struct lock_arguments;
struct restore_arguments;

int cuCheckpointProcessLock(int pid, const struct lock_arguments *arguments);
int cuCheckpointProcessCheckpoint(int pid, const void *arguments);
int cuCheckpointProcessRestore(int pid, const struct restore_arguments *arguments);
int cuCheckpointProcessUnlock(int pid, const void *arguments);
int cuCheckpointProcessGetState(int pid, int *state);
int cuCheckpointProcessGetRestoreThreadId(int pid, int *thread);

#endif
