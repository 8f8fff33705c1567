/* Handing a process over to the coordinator: what is the same for a task (START) and for an srun (LAUNCH). */
#ifndef SLURMCKPT_HANDOVER_H
#define SLURMCKPT_HANDOVER_H

#include "message.h"
#include "reason.h"

/* All open descriptors but the connection, rising, in a new array. Returns how many, or -1 with the reason. */
int handover_list(int **fds, int connection, struct reason *reason);

/* The message's descriptors stay the caller's. 0, or -1 with the reason. */
int handover_send(int connection, struct message *message, struct reason *reason);

#endif
