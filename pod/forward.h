/* Signals on their way through a process that stands in for another one: each is taken from the kernel only when it can be passed on. */
#ifndef SLURMCKPT_FORWARD_H
#define SLURMCKPT_FORWARD_H

#include <poll.h>
#include <stdbool.h>

#define FORWARD_POLLED 2

struct forward {
	int signals;		/* signalfd */
	int out;		/* where they go to, a pipe or a socket */
	bool congested;		/* out takes nothing: until it does, the kernel keeps them */
};

/* All signals must be blocked. 0, or -1 with errno. */
int forward_open(struct forward *forward, int out);

/* Fills FORWARD_POLLED entries for poll(2). */
void forward_wait(const struct forward *forward, struct pollfd wait[FORWARD_POLLED]);

/* After poll(2): the number of a signal that `out` takes now without blocking, or 0. It has to be passed on at once. */
int forward_take(struct forward *forward, const struct pollfd wait[FORWARD_POLLED]);

#endif
