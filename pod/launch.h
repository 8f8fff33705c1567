/* One srun that runs for a stand-in, by a process that has the user's rights already. */
#ifndef SLURMCKPT_LAUNCH_H
#define SLURMCKPT_LAUNCH_H

#include <stddef.h>
#include <sys/types.h>

#include "message.h"
#include "reason.h"

struct launch {
	int control;		/* to the coordinator, which may be gone */
	int signals;		/* from the stand-in: int32 numbers; its end is the stand-in's */
	int status;		/* to the stand-in: one int32, the raw wait status */
	int children;		/* signalfd for SIGCHLD */
	pid_t srun;
	unsigned char word[sizeof(int32_t)];	/* the number being read from `signals` */
	size_t word_size;
};

/* Waits for LAUNCH: the signal pipe, the status pipe, the payload, the descriptors. */
int launch_receive(int control, struct message *message, struct reason *reason);

/* Starts the program with what LAUNCH brought. When this returns 0, it has been executed, and nothing of the user's is open here any more. */
int launch_start(struct launch *launch, const char *program, struct message *message, struct reason *reason);

/* Says STARTED, and passes signals on until srun has ended and both sides know. */
void launch_serve(struct launch *launch);

#endif
