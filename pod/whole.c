#include "whole.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "signals.h"

bool whole_begin(void)
{
	return !prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static void kill_children(void)
{
	FILE *children = fopen("/proc/thread-self/children", "re");
	int pid;

	while (children && fscanf(children, "%d", &pid) == 1)
		kill(pid, SIGKILL);
	if (children)
		fclose(children);
}

/* Each that dies hands its own children over, so there may be new ones after each. */
static void kill_all(void)
{
	do {
		kill_children();
	} while (waitpid(-1, NULL, 0) > 0 || errno == EINTR);
}

/* Whether it has ended; what else has ended is forgotten. */
static bool has_ended(pid_t program, int *wait_status)
{
	bool ended = false;
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid == program) {
			*wait_status = status;
			ended = true;
		}
	}
	return ended;
}

int whole_wait(pid_t program)
{
	int signals = signals_open(signal_bit(SIGCHLD) | signal_bit(SIGTERM));
	int wait_status = SIGTERM;

	while (!has_ended(program, &wait_status)) {
		struct pollfd entry = {.fd = signals, .events = POLLIN};

		/* without a signalfd (no descriptor left) look again now and then */
		poll(&entry, 1, signals < 0 ? 100 : -1);
		if (entry.revents && signals_read(signals) == SIGTERM)
			break;
	}
	if (signals >= 0)
		close(signals);
	kill_all();
	return wait_status;
}
