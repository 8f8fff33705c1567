/*
 * srun ...: lies over the real srun in the pod of a batch script and is part of the script's image. The coordinator gets everything that this
 * srun is made of and has the real one run outside the pod, where its connections to Slurm are no part of an image. From then on this
 * process holds its descriptors and two pipes: signals out, status in. Whenever it cannot, it executes the real srun itself.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "descriptors.h"
#include "end.h"
#include "forward.h"
#include "handover.h"
#include "line.h"
#include "message.h"
#include "payload.h"
#include "reason.h"
#include "signals.h"

/* Bound over an empty directory in a batch script's pod: the coordinator's socket, and the real srun. */
#define POD_DIR LIBEXECDIR "/pod"
#define LAUNCH_SOCKET POD_DIR "/launch.sock"
#define REAL_SRUN POD_DIR "/srun"

/* A place in the coordinator's listen queue is free at once, unless it hangs. */
#define CONNECT_PATIENCE_SECONDS 10
/* For each answer, WAIT included. The coordinator starts the real srun before it answers, which takes it far less than a second. */
#ifndef ANSWER_PATIENCE_SECONDS
#define ANSWER_PATIENCE_SECONDS 60
#endif
/* What is ours gets out of the way of the script's own numbers. */
#define FAR_NUMBER 200

extern char **environ;

struct pipes {
	int signals;	/* to the launcher: int32 numbers */
	int status;	/* from the launcher: one int32, the raw wait status */
};

enum verdict {
	VERDICT_NONE,	/* the coordinator has more to say */
	VERDICT_DIRECT,
	VERDICT_LAUNCHED,
};

/* ---- asking the coordinator ---- */

static int connect_coordinator(struct reason *reason)
{
	const struct timeval patience = {.tv_sec = CONNECT_PATIENCE_SECONDS};
	const struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = LAUNCH_SOCKET};
	int lifted = -1, fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	_Static_assert(sizeof(LAUNCH_SOCKET) <= sizeof(address.sun_path), "a socket's path is short");
	if (fd < 0) {
		refuse(reason, "cannot create a socket: %s", strerror(errno));
	} else if ((lifted = descriptor_lift(fd)) < 0) {
		refuse(reason, "cannot move the coordinator's connection: %s", strerror(errno));
		close(fd);
	} else if (setsockopt(lifted, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) ||
		   connect(lifted, (const struct sockaddr *)&address, sizeof(address))) {
		refuse(reason, "cannot reach the coordinator: %s", strerror(errno));
		close(lifted);
		lifted = -1;
	}
	return lifted;
}

static int hand_over(int connection, struct payload_source *source, struct reason *reason)
{
	int *fds = NULL;
	int count = handover_list(&fds, connection, reason), result = -1;

	if (count >= 0) {
		source->fds = fds;
		source->fd_count = (size_t)count;
		result = handover_send(connection, "LAUNCH", source, fds, -1, reason);
	}
	free(fds);
	return result;
}

/* A limit that leaves no room must not lose the pipes of an srun that runs already: they may take what the hard limit allows. */
static enum message_result receive(int connection, struct message *message)
{
	enum message_result result;
	struct rlimit limit;
	int error;

	getrlimit(RLIMIT_NOFILE, &limit);
	descriptors_raise_limit();
	result = message_receive(connection, message, true, MSG_DONTWAIT);
	error = errno;
	setrlimit(RLIMIT_NOFILE, &limit);
	errno = error;
	return result;
}

/* Whether the coordinator says something, or ends. Seconds are counted one by one: a freeze of this process takes one at most. */
static bool hear(int connection)
{
	struct pollfd wait = {.fd = connection, .events = POLLIN};
	int left = ANSWER_PATIENCE_SECONDS;

	while (left > 0 && poll(&wait, 1, 1000) == 0)
		left--;
	return left > 0;
}

static enum verdict take_answer(int connection, struct pipes *pipes, struct reason *reason)
{
	struct message message = MESSAGE_EMPTY;
	enum verdict verdict = VERDICT_DIRECT;
	enum message_result result;
	const char *text;

	if (!hear(connection)) {
		refuse(reason, "the coordinator does not answer");
		goto out;
	}
	result = receive(connection, &message);
	if ((result == MESSAGE_FAILED && errno == EAGAIN) || (result == MESSAGE_GOT && message_is(&message, "WAIT"))) {
		verdict = VERDICT_NONE;
	} else if (result == MESSAGE_GOT && message_is(&message, "SAY") && (text = message_value(&message, "text"))) {
		print_line(STDERR_FILENO, text);
		verdict = VERDICT_NONE;
	} else if (result == MESSAGE_GOT && message_is(&message, "LAUNCHED") && message.fd_count == 2) {
		pipes->signals = descriptor_lift_to(message_take_fd(&message, 0), FAR_NUMBER);
		pipes->status = descriptor_lift_to(message_take_fd(&message, 1), FAR_NUMBER);
		verdict = VERDICT_LAUNCHED;
	} else if (result == MESSAGE_END) {
		refuse(reason, "the coordinator is gone");
	} else if (result != MESSAGE_GOT || !message_is(&message, "DIRECT")) {
		refuse(reason, "malformed message from the coordinator");
	}
out:
	message_free(&message);
	return verdict;
}

/* True when the real srun has been launched. Otherwise this process has to become it; the user is told why, by us or by the coordinator. */
static bool launch(struct payload_source *source, struct pipes *pipes)
{
	struct reason reason = {""};
	enum verdict verdict = VERDICT_DIRECT;
	int connection = connect_coordinator(&reason);

	if (connection < 0)
		goto out;
	if (!hand_over(connection, source, &reason)) {
		do {
			verdict = take_answer(connection, pipes, &reason);
		} while (verdict == VERDICT_NONE);
	}
	close(connection);
out:
	if (reason.text[0])
		print_format(STDERR_FILENO, "slurmckpt: this srun runs without checkpoints: %s", reason.text);
	return verdict == VERDICT_LAUNCHED;
}

/* ---- standing in ---- */

static void pass_signal(int out, int number)
{
	int32_t word = number;

	/* the launcher is gone: that is what the end of the status pipe says, too. The signal is for this thread alone, and taken first. */
	if (write(out, &word, sizeof(word)) < 0 && errno == EPIPE)
		signals_discard(SIGPIPE);
}

/* One int32, written at once. Its absence says that the launcher was killed, and the real srun with it. */
static int read_status(int fd)
{
	int32_t wait_status = 0;
	ssize_t got;

	do {
		got = read(fd, &wait_status, sizeof(wait_status));
	} while (got < 0 && errno == EINTR);
	return got == sizeof(wait_status) && is_end_status(wait_status) ? wait_status : SIGKILL;
}

/* This is where a checkpoint finds the process, and where a restored one goes on with two new pipes in place of these. */
static int stand_in(const struct pipes *pipes)
{
	struct forward forward;
	int number;

	if (forward_open(&forward, pipes->signals)) {
		print_format(STDERR_FILENO, "slurmckpt: this srun is killed: cannot watch signals: %s", strerror(errno));
		return SIGKILL;
	}
	forward.signals = descriptor_lift_to(forward.signals, FAR_NUMBER);
	for (;;) {
		struct pollfd wait[1 + FORWARD_POLLED] = {{.fd = pipes->status, .events = POLLIN}};

		forward_wait(&forward, wait + 1);
		if (poll(wait, sizeof(wait) / sizeof(*wait), -1) < 0)
			continue;
		if (wait[0].revents)
			return read_status(pipes->status);
		number = forward_take(&forward, wait + 1);
		if (number)
			pass_signal(pipes->signals, number);
	}
}

_Noreturn static void become_srun(char **argv, signal_mask blocked)
{
	int error;

	signals_set_mask(blocked);
	execve(REAL_SRUN, argv, environ);
	error = errno;
	signals_set_mask(SIGNALS_ALL);
	print_format(STDERR_FILENO, "slurmckpt: cannot execute %s: %s", REAL_SRUN, strerror(error));
	/* as a shell says it */
	_exit(error == ENOENT ? 127 : 126);
}

int main(int argc, char **argv)
{
	/* before anything else: a signal that comes now belongs to the real srun, and waits until it can have it */
	signal_mask blocked = signals_set_mask(SIGNALS_ALL);
	struct payload_source source = {.argv = argv, .envp = environ, .ignored = signals_ignored(), .blocked = blocked};
	struct pipes pipes = {-1, -1};

	(void)argc;
	if (!launch(&source, &pipes))
		become_srun(argv, blocked);
	end_like(stand_in(&pipes));
}
