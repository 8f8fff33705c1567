/* Ending the way another process ended. */
#ifndef SLURMCKPT_END_H
#define SLURMCKPT_END_H

#include <stdbool.h>

/* Whether a raw wait status says that a process ended (and not that it stopped or was continued). */
bool is_end_status(int wait_status);

/* Exits with the same status, or dies of the same signal, without a core file. */
_Noreturn void end_like(int wait_status);

#endif
