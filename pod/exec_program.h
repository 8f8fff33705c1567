/* Executing the task's program as slurmstepd would have: the same search, the same words when it fails, the same exit code. */
#ifndef SLURMCKPT_EXEC_PROGRAM_H
#define SLURMCKPT_EXEC_PROGRAM_H

#include "signals.h"

/*
 * Resolves argv[0] (which becomes the resolved path, as under slurmstepd), sets the signal mask and executes. A failure goes to standard
 * error in Slurm's words, and the exit code is errno. All signals must be blocked when this is called.
 */
_Noreturn void exec_program(char **argv, char **envp, signal_mask blocked);

#endif
