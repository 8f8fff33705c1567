#include "say.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 512 }; /* below PIPE_BUF: a pipe that polls writable takes all of it */

void say(const char *text)
{
	const struct timespec now = { 0 };
	struct pollfd out = { .fd = STDERR_FILENO, .events = POLLOUT };
	char line[LINE_MAX_BYTES];
	sigset_t sigpipe, pending, before;
	int length = snprintf(line, sizeof(line) - 1, "slurmckpt: %s", text);

	if (length < 0)
		return;
	if (length > (int)sizeof(line) - 2)
		length = sizeof(line) - 2;
	line[length++] = '\n';
	if (poll(&out, 1, 0) != 1 || !(out.revents & POLLOUT))
		return;

	sigemptyset(&sigpipe);
	sigaddset(&sigpipe, SIGPIPE);
	sigpending(&pending);
	pthread_sigmask(SIG_BLOCK, &sigpipe, &before);
	if (write(STDERR_FILENO, line, (size_t)length) < 0 && !sigismember(&pending, SIGPIPE))
		sigtimedwait(&sigpipe, NULL, &now);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}
