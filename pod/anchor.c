/*
 * slurmckpt-anchor SOCKET: a root process below the first task of a step on this node, started by the plugin before that task became its shim.
 * The pods of the step are its children. So the ranks stand where Slurm looks for the processes of a task: below its slurmstepd (signals and
 * suspension with proctrack/linuxproc) and below the task (sstat, memory limits). It is also in the shim's process group, and tells pod init
 * what signals come to that group.
 *
 * SOCKET leads to the coordinator. Its end, when no pod is left, is the end of this process; and so is the end of a pod whose tasks have all
 * ended (OVER), as nothing of the step comes back then. The shim of the last task waits for it: nothing else of the step is left.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cgroup.h"
#include "descriptors.h"
#include "farewell.h"
#include "line.h"
#include "message.h"
#include "number.h"
#include "reason.h"
#include "signals.h"

/* Where pod init finds what comes with POD (docs/architecture.md): its binary, the control socket, a network namespace, and our link. */
enum { POD_BINARY = 10, POD_CONTROL, POD_NETWORK, POD_LINK };
#define POD_LINK_OPTION "--anchor=13"

struct anchor {
	int coordinator;	/* -1: gone */
	int link;		/* to the pod init that was started last, or -1 */
	int last;		/* connection of the shim that waits for our end, or -1 */
	int signals;
	bool has_children;
};

static void fail(int control, const struct reason *reason)
{
	struct message failed;

	message_start(&failed, "FAILED");
	message_add(&failed, "reason", "%s", reason->text);
	message_send(control, &failed, MSG_DONTWAIT);
	message_free(&failed);
}

/* The process group that Slurm signals as one. We are of the same session; a task with a terminal has its own, and is not wrapped. */
static void join_group_of_the_shim(void)
{
	pid_t group = getpgid(getppid());

	if (group > 0)
		setpgid(0, group);
}

static int join_cgroups(const struct message *message, struct reason *reason)
{
	int result = 0;

	for (const char *path = message_next_value(message, "cgroup", NULL); path && !result;
	     path = message_next_value(message, "cgroup", path))
		result = cgroup_join(path, reason);
	return result;
}

/* argv of pod init: its arguments as they came, and where our link is. NULL without memory. */
static char **arguments(const struct message *message)
{
	size_t count = 0;
	char **argv;

	for (const char *word = message_next_value(message, "arg", NULL); word; word = message_next_value(message, "arg", word))
		count++;
	argv = calloc(count + 3, sizeof(*argv));
	if (!argv)
		return NULL;
	argv[0] = "pod-init";
	count = 1;
	for (const char *word = message_next_value(message, "arg", NULL); word; word = message_next_value(message, "arg", word))
		argv[count++] = (char *)word;
	argv[count] = POD_LINK_OPTION;
	return argv;
}

_Noreturn static void become_pod_init(const struct message *message, int link)
{
	static char *const environment[] = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin", NULL};
	int sources[7] = {0, 1, 2, message->fds[0], message->fds[1], link}, targets[7] = {0, 1, 2, POD_BINARY, POD_CONTROL, POD_LINK};
	char **argv = arguments(message);
	struct reason reason;
	size_t count = 6;

	if (message->fd_count > 2) {
		sources[count] = message->fds[2];
		targets[count++] = POD_NETWORK;
	}
	setsid();
	if (argv && !descriptors_place(sources, targets, count, &reason)) {
		fcntl(POD_BINARY, F_SETFD, FD_CLOEXEC);
		fexecve(POD_BINARY, argv, environment);
		refuse(&reason, "cannot execute pod-init: %s", strerror(errno));
		fail(POD_CONTROL, &reason);
	}
	_exit(1);
}

/* POD: a new pod. What goes wrong before pod init can speak for itself is said on its control socket. */
static void make_pod(struct anchor *anchor, const struct message *message)
{
	struct reason reason;
	int ends[2];
	pid_t child;

	join_group_of_the_shim();
	if (join_cgroups(message, &reason))
		goto failed;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
		refuse(&reason, "cannot create a socket pair: %s", strerror(errno));
		goto failed;
	}
	child = fork();
	if (child == 0)
		become_pod_init(message, ends[1]);
	close(ends[1]);
	if (anchor->link >= 0)
		close(anchor->link);
	anchor->link = ends[0];
	anchor->has_children = true;
	if (child > 0)
		return;
	refuse(&reason, "cannot fork: %s", strerror(errno));
failed:
	fail(message->fds[1], &reason);
}

static void leave_coordinator(struct anchor *anchor)
{
	close(anchor->coordinator);
	anchor->coordinator = -1;
}

static void serve_coordinator(struct anchor *anchor)
{
	struct message message = MESSAGE_EMPTY;
	enum message_result result = message_receive(anchor->coordinator, &message, true, MSG_DONTWAIT);

	if (result == MESSAGE_GOT && message_is(&message, "POD") && message.fd_count >= 2) {
		make_pod(anchor, &message);
	} else if (result != MESSAGE_FAILED || errno != EAGAIN) {
		leave_coordinator(anchor);
	}
	message_free(&message);
}

/* OVER, or the end of the pod init that was started last. */
static void serve_pod(struct anchor *anchor)
{
	struct message message = MESSAGE_EMPTY;
	enum message_result result = message_receive(anchor->link, &message, true, MSG_DONTWAIT);

	if (result == MESSAGE_GOT && message_is(&message, "OVER")) {
		anchor->last = message_take_fd(&message, 0);
		if (anchor->coordinator >= 0)
			leave_coordinator(anchor);
	} else if (result != MESSAGE_FAILED || errno != EAGAIN) {
		close(anchor->link);
		anchor->link = -1;
	}
	message_free(&message);
}

/* A signal to the process group (SIGCHLD aside): pod init passes it on to what stands for that group in the pod. */
static void tell(const struct anchor *anchor, int number)
{
	struct message message;

	message_start(&message, "GROUP");
	message_add(&message, "n", "%d", number);
	/* a failure means that the pod is gone */
	if (anchor->link >= 0)
		message_send(anchor->link, &message, MSG_DONTWAIT);
	message_free(&message);
}

static void serve_signals(struct anchor *anchor)
{
	int number;

	while ((number = signals_read(anchor->signals)) > 0) {
		if (number != SIGCHLD)
			tell(anchor, number);
	}
	/* pods too: as a subreaper this is the parent of pod init once its first stage has ended */
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	anchor->has_children = waitpid(-1, NULL, WNOHANG) == 0;
}

static int prepare(struct anchor *anchor, const char *text, struct reason *reason)
{
	int type = 0, keep[4] = {0, 1, 2};
	socklen_t size = sizeof(type);
	uint64_t number;

	prctl(PR_SET_NAME, "slurmckpt-anchor");
	if (!parse_number(text, 10, INT_MAX, &number) || number < 3 ||
	    getsockopt((int)number, SOL_SOCKET, SO_TYPE, &type, &size) || type != SOCK_SEQPACKET)
		return refuse(reason, "%.60s is not the number of a SOCK_SEQPACKET socket", text);
	anchor->coordinator = keep[3] = (int)number;
	fcntl(anchor->coordinator, F_SETFD, FD_CLOEXEC);
	if (prctl(PR_SET_CHILD_SUBREAPER, 1))
		return refuse(reason, "cannot become subreaper: %s", strerror(errno));
	if (descriptors_silence(true, reason))
		return -1;
	if (descriptors_close_others(keep, sizeof(keep) / sizeof(*keep)))
		return refuse(reason, "cannot close descriptors: %s", strerror(errno));
	if (chdir("/"))
		return refuse(reason, "cannot enter /: %s", strerror(errno));
	anchor->signals = signals_open(SIGNALS_ALL);
	return anchor->signals < 0 ? refuse(reason, "cannot watch signals: %s", strerror(errno)) : 0;
}

int main(int argc, char **argv)
{
	struct anchor anchor = {.coordinator = -1, .link = -1, .last = -1, .signals = -1};
	struct reason reason;

	/* Slurm and the ranks' users mean the ranks, not this process: only SIGKILL ends it */
	signals_set_mask(SIGNALS_ALL);
	signals_set_ignored(0);
	if (argc != 2) {
		print_line(STDERR_FILENO, "slurmckpt: anchor SOCKET is run by the plugin only");
		return 2;
	}
	if (prepare(&anchor, argv[1], &reason)) {
		print_format(STDERR_FILENO, "slurmckpt: anchor: %s", reason.text);
		return 1;
	}
	while (anchor.coordinator >= 0 || anchor.has_children) {
		struct pollfd wait[] = {{.fd = anchor.signals, .events = POLLIN},
					{.fd = anchor.coordinator, .events = POLLIN},
					{.fd = anchor.link, .events = POLLIN}};

		if (poll(wait, 3, -1) < 0)
			continue;
		if (wait[0].revents)
			serve_signals(&anchor);
		if (wait[2].revents)
			serve_pod(&anchor);
		if (anchor.coordinator >= 0 && wait[1].revents)
			serve_coordinator(&anchor);
	}
	if (anchor.last >= 0)
		farewell_say(anchor.last);
	return 0;
}
