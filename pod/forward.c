#include "forward.h"

#include <signal.h>

#include "signals.h"

int forward_open(struct forward *forward, int out)
{
	/* SIGCHLD is about children, and there are none */
	*forward = (struct forward){.signals = signals_open(SIGNALS_ALL & ~signal_bit(SIGCHLD)), .out = out};
	return forward->signals < 0 ? -1 : 0;
}

void forward_wait(const struct forward *forward, struct pollfd wait[FORWARD_POLLED])
{
	wait[0] = (struct pollfd){.fd = forward->congested ? -1 : forward->signals, .events = POLLIN};
	wait[1] = (struct pollfd){.fd = forward->congested ? forward->out : -1, .events = POLLOUT};
}

int forward_take(struct forward *forward, const struct pollfd wait[FORWARD_POLLED])
{
	int number = 0;

	if (wait[1].revents)
		forward->congested = false;
	if (wait[0].revents & POLLIN) {
		struct pollfd room = {.fd = forward->out, .events = POLLOUT};

		/* an error is room as well: passing on fails, and does not block */
		forward->congested = poll(&room, 1, 0) != 1;
		if (!forward->congested)
			number = signals_read(forward->signals);
	}
	return number;
}
