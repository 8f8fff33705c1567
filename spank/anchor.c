#include "anchor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "shim.h"

/* Its connection has ended, so it has nothing left to do but end. */
enum { REAP_TRIES = 100, REAP_INTERVAL_NS = 10 * 1000 * 1000 };

static pid_t anchor_pid;

static _Noreturn void become_anchor(int program, int sock)
{
	static char *const environment[] = { NULL };
	char number[16];
	char *argv[] = { "slurmckpt-anchor", number, NULL };

	snprintf(number, sizeof(number), "%d", sock);
	if (fcntl(sock, F_SETFD, 0) == 0)
		fexecve(program, argv, environment);
	_exit(127);
}

int anchor_start(const char *libexec)
{
	char why[320];
	int ends[2];
	int program = program_open(libexec, "anchor", why, sizeof(why));

	if (program < 0) {
		slurm_info("slurmckpt: %s", why);
		return -1;
	}
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) {
		close(program);
		return -1;
	}
	anchor_pid = fork();
	if (anchor_pid == 0)
		become_anchor(program, ends[1]);
	close(program);
	close(ends[1]);
	if (anchor_pid < 0) {
		close(ends[0]);
		return -1;
	}
	return ends[0];
}

void anchor_reap(void)
{
	const struct timespec interval = { .tv_nsec = REAP_INTERVAL_NS };

	for (int i = 0; anchor_pid > 0 && i < REAP_TRIES; i++) {
		pid_t gone = waitpid(anchor_pid, NULL, WNOHANG);

		if (gone == anchor_pid || (gone < 0 && errno == ECHILD))
			anchor_pid = 0;
		else
			nanosleep(&interval, NULL);
	}
}
