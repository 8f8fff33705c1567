/* Handing a process over to the coordinator: what is the same for a task (START) and for an srun (LAUNCH). */
#ifndef SLURMCKPT_HANDOVER_H
#define SLURMCKPT_HANDOVER_H

#include "payload.h"
#include "reason.h"

/* All open descriptors but the connection, rising, in a new array. Returns how many, or -1 with the reason. */
int handover_list(int **fds, int connection, struct reason *reason);

/*
 * Sends `verb` with everything that source says this process is made of: payload, `held` (-1: none), `given` in the order of source's fds,
 * and source's relays. All descriptors stay the caller's. 0, or -1 with the reason.
 */
int handover_send(int connection, const char *verb, const struct payload_source *source, const int *given, int held, struct reason *reason);

#endif
