/*
 * /proc/self/fd/N slurmckpt-shim S ARGV...: what slurmstepd executes instead of a task, as the user. Hands the task over through the socket
 * S and then stands in for it: signals in, status out. Whenever it cannot, it executes the task itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "descriptors.h"
#include "end.h"
#include "exec_program.h"
#include "farewell.h"
#include "forward.h"
#include "handover.h"
#include "line.h"
#include "message.h"
#include "number.h"
#include "payload.h"
#include "reason.h"
#include "relays.h"
#include "signals.h"

extern char **environ;

#define SELF_PREFIX "/proc/self/fd/"
/* After the task's end: how long the reader of its output may take nothing (a file server that hangs) before the rest is given up. */
#define READER_PATIENCE_MS 30000
/* After the pod was killed: how long passing the rest on may take in all. */
#define KILLED_PATIENCE_MS 1000
/* Before RUN: how long the coordinator may say nothing. It says WAIT every few seconds while it restores, for however long that takes. */
#define COORDINATOR_PATIENCE_MS 30000

/* After the end of the last task: how long its pod may take to go. Slurm, which finds the rest of it then, waits a second itself. */
#define POD_PATIENCE_MS 1000

#define REAP_INTERVAL_MS 2
#define REAP_PATIENCE_MS 1000

enum verdict {
	VERDICT_DIRECT,
	VERDICT_RUN,
	VERDICT_EXIT,
	VERDICT_KILLED,
};

struct end {
	int wait_status;
	bool last;	/* the pod ends, too */
};

/* The plugin opened this program for exec; if that descriptor came along, it is not the task's. */
static void close_own_executable(const char *argv0)
{
	struct stat opened, running;
	uint64_t number;

	if (!strncmp(argv0, SELF_PREFIX, strlen(SELF_PREFIX)) && parse_number(argv0 + strlen(SELF_PREFIX), 10, INT_MAX, &number) &&
	    !fstat((int)number, &opened) && !stat("/proc/self/exe", &running) && opened.st_dev == running.st_dev &&
	    opened.st_ino == running.st_ino)
		close((int)number);
}

/* The connection to the coordinator at a number of 3 or above, or -1 with the reason. */
static int open_connection(const char *text, struct reason *reason)
{
	uint64_t number;
	int socket;

	if (!parse_number(text, 10, INT_MAX, &number))
		return refuse(reason, "%.60s is not the number of the coordinator's connection", text);
	if (!message_is_socket((int)number))
		return refuse(reason, "descriptor %d is not the coordinator's connection", (int)number);
	socket = descriptor_lift((int)number);
	return socket >= 0 ? socket : refuse(reason, "cannot move the coordinator's connection: %s", strerror(errno));
}

/* The task's streams go with the relays' ends in their place. */
static int hand_over(int socket, struct payload_source *source, struct relays *relays, struct reason *reason)
{
	int *fds = NULL, *given = NULL;
	int count = handover_list(&fds, socket, reason), result = -1;

	if (count < 0 || relays_open(relays, reason))
		goto out;
	given = calloc((size_t)count + 1, sizeof(*given));
	if (!given) {
		refuse(reason, "out of memory");
		goto out;
	}
	for (int i = 0; i < count; i++)
		given[i] = relays_task_end(relays, fds[i]);
	source->fds = fds;
	source->fd_count = (size_t)count;
	source->relays = relays->numbers;
	source->relay_count = relays->count;
	result = handover_send(socket, "START", source, given, relays->memfd, reason);
	if (!result)
		relays_handed_over(relays);
out:
	free(given);
	free(fds);
	return result;
}

static bool parse_exit(const struct message *message, struct end *end)
{
	uint64_t value;
	bool good = message_number(message, "status", 0xffff, &value) && is_end_status((int)value);

	if (good)
		*end = (struct end){.wait_status = (int)value, .last = message_value(message, "last")};
	return good;
}

/*
 * One message. True when it decides something: then *verdict, and for VERDICT_EXIT *end, say what. The end of the connection, and
 * anything that is not a message, means that this task is on its own: before RUN it can still be executed, afterwards it is lost.
 */
static bool take_message(int socket, bool running, struct relays *relays, enum verdict *verdict, struct end *end)
{
	struct message message = MESSAGE_EMPTY;
	enum message_result result = message_receive(socket, &message, false, 0);
	const char *text;
	bool decided = true;

	*verdict = running ? VERDICT_KILLED : VERDICT_DIRECT;
	if (result == MESSAGE_GOT && message_is(&message, "SAY") && (text = message_value(&message, "text"))) {
		if (running)
			relays_say(relays, "%s", text);
		else
			print_line(STDERR_FILENO, text);
		decided = false;
	} else if (result == MESSAGE_GOT && message_is(&message, "WAIT")) {
		/* it has come, and that is all */
		decided = false;
	} else if (result == MESSAGE_GOT && message_is(&message, "EXIT") && parse_exit(&message, end)) {
		*verdict = VERDICT_EXIT;
	} else if (result == MESSAGE_GOT && !running && message_is(&message, "RUN")) {
		*verdict = VERDICT_RUN;
	} else if (result == MESSAGE_GOT && !running && message_is(&message, "DIRECT")) {
		*verdict = VERDICT_DIRECT;
	} else if (result == MESSAGE_END && !running) {
		print_line(STDERR_FILENO, "slurmckpt: the coordinator is gone, this task runs without checkpoints");
	} else if (result != MESSAGE_END && running) {
		relays_say(relays, "slurmckpt: malformed message from the coordinator, this task is killed");
	} else if (result != MESSAGE_END) {
		print_line(STDERR_FILENO, "slurmckpt: malformed message from the coordinator, this task runs without checkpoints");
	}
	message_free(&message);
	return decided;
}

/* Keeps the connection, the relays and, for SAY, a standard error that has no relay. */
static int let_go(int socket, const struct relays *relays, struct reason *reason)
{
	int keep[4 + RELAYS_POLLED] = {0, 1, 2, socket};

	relays_descriptors(relays, keep + 4);
	if (descriptors_silence(relays->of_stderr || fcntl(STDERR_FILENO, F_GETFD) < 0, reason))
		return -1;
	if (descriptors_close_others(keep, sizeof(keep) / sizeof(*keep)))
		return refuse(reason, "cannot close descriptors: %s", strerror(errno));
	/* a directory that this process stands in could not be unmounted */
	return chdir("/") ? refuse(reason, "cannot leave the working directory: %s", strerror(errno)) : 0;
}

static void pass_signal(int socket, int number)
{
	struct message message;

	message_start(&message, "SIGNAL");
	message_add(&message, "n", "%d", number);
	/* a failure means that the other side is gone, which the next receive finds */
	message_send(socket, &message, MSG_DONTWAIT);
	message_free(&message);
}

/* From RUN to the end. */
static enum verdict stand_in(int socket, struct relays *relays, struct end *end)
{
	enum verdict verdict = VERDICT_KILLED;
	struct forward forward;
	int number;

	if (forward_open(&forward, socket)) {
		relays_say(relays, "slurmckpt: cannot watch signals: %s", strerror(errno));
		return verdict;
	}
	for (;;) {
		struct pollfd wait[1 + FORWARD_POLLED + RELAYS_POLLED] = {{.fd = socket, .events = POLLIN}};
		struct pollfd *streams = wait + 1 + FORWARD_POLLED;

		forward_wait(&forward, wait + 1);
		relays_wait(relays, streams);
		poll(wait, sizeof(wait) / sizeof(*wait), relays_patience(relays));
		relays_serve(relays, streams);
		if ((wait[0].revents & (POLLIN | POLLHUP | POLLERR)) && take_message(socket, true, relays, &verdict, end))
			break;
		number = forward_take(&forward, wait + 1);
		if (number)
			pass_signal(socket, number);
	}
	return verdict;
}

/* A terminal is never handed over. The coordinator says so, once for all such tasks of the job. */
static int say_terminal(int socket, struct reason *reason)
{
	struct message message;
	int failed;

	message_start(&message, "TERMINAL");
	message_add(&message, "v", "%d", 1);
	failed = message_send(socket, &message, 0);
	message_free(&message);
	return failed ? refuse(reason, "standard input is a terminal, and the coordinator does not answer") : 0;
}

/* Whether the coordinator says something, or ends. */
static bool hear(int socket)
{
	struct pollfd entry = {.fd = socket, .events = POLLIN};

	return poll(&entry, 1, COORDINATOR_PATIENCE_MS) != 0;
}

/* Everything up to the coordinator's word. */
static enum verdict ask(int socket, struct payload_source *source, struct relays *relays, struct end *end)
{
	enum verdict verdict = VERDICT_DIRECT;
	struct reason reason;

	if (isatty(STDIN_FILENO) ? !say_terminal(socket, &reason) : !hand_over(socket, source, relays, &reason)) {
		while (hear(socket)) {
			if (take_message(socket, false, relays, &verdict, end))
				return verdict;
		}
		refuse(&reason, "the coordinator does not answer");
	}
	print_format(STDERR_FILENO, "slurmckpt: this task runs without checkpoints: %s", reason.text);
	return verdict;
}

/*
 * The plugin's anchor is a child of this process (spank/anchor.c), and the program must not find a child that it did not make. The anchor ends
 * when the coordinator, which has sent DIRECT or lost our connection, lets go of it; this does not depend on its doing so.
 */
static void reap_anchor(void)
{
	const struct timespec interval = {.tv_nsec = REAP_INTERVAL_MS * 1000000L};

	for (int left = REAP_PATIENCE_MS / REAP_INTERVAL_MS; left > 0 && waitpid(-1, NULL, WNOHANG) >= 0; left--)
		nanosleep(&interval, NULL);
}

int main(int argc, char **argv)
{
	/* before anything else: a signal that comes now belongs to the task, and waits until it can have it */
	signal_mask blocked = signals_set_mask(SIGNALS_ALL);
	struct payload_source source = {.envp = environ, .ignored = signals_ignored(), .blocked = blocked};
	enum verdict verdict = VERDICT_DIRECT;
	struct relays relays = RELAYS_NONE;
	struct reason reason;
	struct end end = {0};
	int socket;

	if (argc < 4) {
		print_line(STDERR_FILENO, "slurmstepd: error: No executable program specified for this task");
		return 2;
	}
	prctl(PR_SET_NAME, "slurmckpt-shim");
	close_own_executable(argv[0]);
	source.argv = argv + 3;
	socket = open_connection(argv[2], &reason);
	if (socket < 0)
		print_format(STDERR_FILENO, "slurmckpt: this task runs without checkpoints: %s", reason.text);
	else
		verdict = ask(socket, &source, &relays, &end);
	if (verdict == VERDICT_RUN) {
		relays_begin(&relays);
		if (let_go(socket, &relays, &reason)) {
			relays_say(&relays, "slurmckpt: the task is killed: %s", reason.text);
			verdict = VERDICT_KILLED;
		} else {
			verdict = stand_in(socket, &relays, &end);
		}
		relays_finish(&relays, verdict == VERDICT_EXIT ? READER_PATIENCE_MS : KILLED_PATIENCE_MS, verdict != VERDICT_EXIT);
		if (verdict == VERDICT_EXIT && end.last)
			farewell_await(socket, POD_PATIENCE_MS);
	}
	relays_close(&relays);
	if (verdict == VERDICT_DIRECT) {
		/* close-on-exec, but a failing exec must not keep the coordinator waiting either */
		if (socket >= 0)
			close(socket);
		reap_anchor();
		exec_program(source.argv, environ, blocked);
	}
	end_like(verdict == VERDICT_EXIT ? end.wait_status : SIGKILL);
}
