/*
 * leader SETUP_FD STATUS_FD: the first process of a pod that is part of a checkpoint. Executed by pod init, as root, inside the pod.
 * Starts the tasks, becomes the job's user, and from then on only waits for them and reports their ends on the status pipe.
 */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cgroup.h"
#include "credentials.h"
#include "descriptors.h"
#include "exec_task.h"
#include "line.h"
#include "message.h"
#include "number.h"
#include "reason.h"
#include "seccomp.h"
#include "signals.h"
#include "status.h"

#define TASKS_MAX 65536

struct task {
	int32_t index;
	pid_t pid;		/* 0: not running */
};

struct leader {
	int setup;
	int status;
	struct credentials user;
	bool deny_io_uring;
	struct task *tasks;
	struct message *starts;	/* the TASK message of each, until all are started */
	size_t task_count;
};

/* ---- what to start ---- */

static int parse_leader(const struct message *message, struct leader *leader, struct reason *reason)
{
	const char *deny = message_value(message, "deny");
	uint64_t count;

	if (!message_number(message, "ntasks", TASKS_MAX, &count) || count == 0)
		return refuse(reason, "LEADER needs ntasks= from 1 to %d", TASKS_MAX);
	if (deny && deny[0] != '\0' && strcmp(deny, "io_uring"))
		return refuse(reason, "LEADER: deny=%.60s is not known, only io_uring is", deny);
	leader->deny_io_uring = deny && deny[0] != '\0';
	leader->tasks = calloc(count, sizeof(*leader->tasks));
	leader->starts = calloc(count, sizeof(*leader->starts));
	if (!leader->tasks || !leader->starts)
		return refuse(reason, "out of memory");
	leader->task_count = count;
	return credentials_parse(message_value(message, "uid"), message_value(message, "gid"), message_value(message, "groups"), &leader->user,
				 reason);
}

static int receive(struct leader *leader, const char *verb, struct message *message, struct reason *reason)
{
	enum message_result result = message_receive(leader->setup, message, true, 0);

	if (result == MESSAGE_END)
		return refuse(reason, "pod init is gone before %s", verb);
	if (result == MESSAGE_FAILED)
		return refuse(reason, "cannot receive %s: %s", verb, errno == EBADMSG ? "malformed message" : strerror(errno));
	if (!message_is(message, verb))
		return refuse(reason, "%s was expected, not %.60s", verb, message->bytes);
	return 0;
}

static int receive_task(struct leader *leader, size_t i, struct reason *reason)
{
	struct message *start = &leader->starts[i];
	uint64_t index;

	if (receive(leader, "TASK", start, reason))
		return -1;
	if (!message_number(start, "index", INT32_MAX, &index))
		return refuse(reason, "TASK needs index=");
	if (start->fd_count < 1)
		return refuse(reason, "TASK index=%d came without a payload", (int)index);
	leader->tasks[i].index = (int32_t)index;
	return 0;
}

static int receive_all(struct leader *leader, struct reason *reason)
{
	struct message message = MESSAGE_EMPTY;
	int result = -1;

	if (receive(leader, "LEADER", &message, reason) || parse_leader(&message, leader, reason))
		goto out;
	for (size_t i = 0; i < leader->task_count; i++) {
		if (receive_task(leader, i, reason))
			goto out;
	}
	message_free(&message);
	result = receive(leader, "GO", &message, reason);
out:
	message_free(&message);
	return result;
}

/* ---- starting ---- */

static void report(const struct leader *leader, enum status_kind kind, const struct task *task, pid_t pid, int wait_status)
{
	struct status_record record = {.kind = kind, .index = task->index, .pid = pid, .wait_status = wait_status};
	ssize_t written;

	/* records are smaller than PIPE_BUF: all or nothing; nobody to tell when pod init is gone, for then this process is, too */
	do {
		written = write(leader->status, &record, sizeof(record));
	} while (written < 0 && errno == EINTR);
}

static int join_cgroups(const struct message *start, struct reason *reason)
{
	const char *file = NULL;
	int result = 0;

	while (!result && (file = message_next_value(start, "cgroup", file)))
		result = cgroup_join(file, reason);
	return result;
}

/* In the child. Up to credentials_assume it is root and looks at nothing that a user has written. */
_Noreturn static void become_task(const struct leader *leader, struct message *start, pid_t group)
{
	struct reason reason;
	int *fds = start->fds;
	size_t fd_count = start->fd_count;

	setpgid(0, group);
	if (join_cgroups(start, &reason) || credentials_assume(&leader->user, &reason)) {
		/* even a line of ours is written to the user's descriptor only with the user's rights */
		if (!setgid(leader->user.gid) && !setuid(leader->user.uid))
			print_format(fd_count > 3 ? fds[3] : -1, "slurmckpt: cannot start the task: %s", reason.text);
		_exit(1);
	}
	exec_task(fds[0], fds + 1, fd_count - 1);
}

/* The tasks of a step share one process group, as under slurmstepd. The first task stays at least as a zombie until all have joined it. */
static void start_tasks(struct leader *leader)
{
	pid_t group = 0;

	for (size_t i = 0; i < leader->task_count; i++) {
		struct task *task = &leader->tasks[i];
		pid_t pid = fork();

		if (pid == 0)
			become_task(leader, &leader->starts[i], group);
		if (pid > 0) {
			/* here and in the child: whichever comes first */
			setpgid(pid, group);
			if (!group)
				group = pid;
			task->pid = pid;
		}
	}
	for (size_t i = 0; i < leader->task_count; i++)
		message_free(&leader->starts[i]);
	free(leader->starts);
	leader->starts = NULL;
}

static void report_starts(const struct leader *leader)
{
	for (size_t i = 0; i < leader->task_count; i++) {
		const struct task *task = &leader->tasks[i];

		if (task->pid)
			report(leader, STATUS_STARTED, task, task->pid, 0);
		else
			report(leader, STATUS_EXITED, task, 0, 1 << 8);
	}
}

/* ---- the long rest ---- */

/* What a capture sees: the user's process, dumpable, with /dev/null and the status pipe and nothing else. */
static int settle(struct leader *leader, struct reason *reason)
{
	const int keep[] = {0, 1, 2, STATUS_FD};

	if (credentials_assume(&leader->user, reason))
		return -1;
	prctl(PR_SET_DUMPABLE, 1);
	if (leader->status != STATUS_FD && dup2(leader->status, STATUS_FD) < 0)
		return refuse(reason, "cannot place the status pipe: %s", strerror(errno));
	leader->status = STATUS_FD;
	if (descriptors_close_others(keep, sizeof(keep) / sizeof(*keep)))
		return refuse(reason, "cannot close descriptors: %s", strerror(errno));
	credentials_free(&leader->user);
	return 0;
}

static size_t running_tasks(const struct leader *leader)
{
	size_t count = 0;

	for (size_t i = 0; i < leader->task_count; i++)
		count += leader->tasks[i].pid != 0;
	return count;
}

/* Orphans of the tasks come here as well (this is their subreaper); they are reaped and nobody is told. */
static void wait_for_tasks(struct leader *leader)
{
	int wait_status;
	pid_t pid;

	while (running_tasks(leader)) {
		pid = waitpid(-1, &wait_status, 0);
		if (pid < 0 && errno != EINTR)
			break;
		for (size_t i = 0; pid > 0 && i < leader->task_count; i++) {
			struct task *task = &leader->tasks[i];

			if (task->pid == pid) {
				task->pid = 0;
				report(leader, STATUS_EXITED, task, pid, wait_status);
				break;
			}
		}
	}
}

static int prepare(struct leader *leader, struct reason *reason)
{
	/* the user's processes can signal this one as soon as it has their uid */
	signals_set_ignored(0);
	signals_set_mask(SIGNALS_ALL);
	descriptors_raise_limit();
	if (descriptors_silence(true, reason))
		return -1;
	/* fails only for a process group leader, and that is what setsid is for */
	setsid();
	if (prctl(PR_SET_CHILD_SUBREAPER, 1))
		return refuse(reason, "cannot become subreaper: %s", strerror(errno));
	return receive_all(leader, reason);
}

int main(int argc, char **argv)
{
	struct leader leader = {0};
	struct reason reason;
	uint64_t setup, status;
	int result = 1;

	if (argc != 3 || !parse_number(argv[1], 10, INT_MAX, &setup) || !parse_number(argv[2], 10, INT_MAX, &status) || setup < 3 ||
	    status < 3) {
		print_line(STDERR_FILENO, "slurmckpt: leader SETUP_FD STATUS_FD (two descriptors above 2) is run by pod-init only");
		return 2;
	}
	leader.setup = (int)setup;
	leader.status = (int)status;
	if (prepare(&leader, &reason) || (leader.deny_io_uring && seccomp_deny_io_uring(&reason)))
		goto out;
	start_tasks(&leader);
	if (settle(&leader, &reason))
		goto out;
	/* not before: whoever knows of the tasks may capture them, and this process with them */
	report_starts(&leader);
	wait_for_tasks(&leader);
	result = 0;
out:
	if (result)
		message_send_failed(leader.setup, &reason);
	free(leader.starts);
	free(leader.tasks);
	return result;
}
