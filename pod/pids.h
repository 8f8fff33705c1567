/* The pids of the PID namespace that this process is in: which come next, and how high they get. */
#ifndef SLURMCKPT_PIDS_H
#define SLURMCKPT_PIDS_H

#include <sys/types.h>

#include "reason.h"

/* The last pid that was given by counting on, which is how fork does it; or -1. */
pid_t pids_last(struct reason *reason);
/* The next process gets the pid after this one, or the first after it that is free. */
int pids_continue_after(pid_t last, struct reason *reason);
/* The first number that is too high for a pid here; or -1. */
pid_t pids_max(struct reason *reason);

#endif
