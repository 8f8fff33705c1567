/* The leader as pod init sees it: started with the tasks' messages, or adopted after a restore, and heard through its status pipe. */
#include "pod.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "end.h"
#include "pids.h"

_Noreturn static void become_leader(const char *path, int setup, int status)
{
	char setup_number[12], status_number[12];
	char *argv[] = {"slurmckpt-leader", setup_number, status_number, NULL};
	char *envp[] = {NULL};

	snprintf(setup_number, sizeof(setup_number), "%d", setup);
	snprintf(status_number, sizeof(status_number), "%d", status);
	fcntl(setup, F_SETFD, 0);
	fcntl(status, F_SETFD, 0);
	execve(path, argv, envp);
	_exit(127);
}

int leader_start(struct pod *pod, const char *path, pid_t pid, struct reason *reason)
{
	int pair[2];

	if (access(path, X_OK))
		return refuse(reason, "cannot execute the leader %s: %s", path, strerror(errno));
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return refuse(reason, "cannot create a socket pair: %s", strerror(errno));
	pod->setup.fd = pair[0];
	if (pids_continue_after(pid - 1, reason)) {
		close(pair[1]);
		return -1;
	}
	pod->leader_reason.text[0] = '\0';
	pod->leader = fork();
	if (pod->leader == 0)
		become_leader(path, pair[1], pod->status_write);
	close(pair[1]);
	if (pod->leader < 0)
		return refuse(reason, "cannot fork: %s", strerror(errno));
	/* the coordinator goes by the number that it has chosen */
	return pod->leader == pid ? 0 : refuse(reason, "the leader has the pid %d and not %d", pod->leader, pid);
}

bool leader_serve(struct pod *pod)
{
	struct message message = MESSAGE_EMPTY;
	enum message_result result = message_receive(pod->setup.fd, &message, false, MSG_DONTWAIT);
	const char *text = result == MESSAGE_GOT ? message_value(&message, "reason") : NULL;
	const bool nothing = result == MESSAGE_FAILED && errno == EAGAIN;

	if (text && message_is(&message, "FAILED"))
		refuse(&pod->leader_reason, "%s", text);
	else if (!nothing)
		peer_close(&pod->setup);
	message_free(&message);
	return !nothing;
}

static void take_record(struct pod *pod, const struct status_record *record)
{
	struct task *task = record->index >= 0 ? tasks_find(pod, (uint32_t)record->index) : NULL;
	struct message note;

	/* anybody with the job's uid can write here: believe only what can be */
	if (!task || !task->announced || task_over(task))
		return;
	if (record->kind == STATUS_STARTED && !task->pid && record->pid > 1) {
		message_start(&note, "STARTED");
		message_add(&note, "index", "%u", task->index);
		message_add(&note, "pid", "%d", record->pid);
		pod_post(pod, &note);
		task_started(pod, task, record->pid);
	} else if (record->kind == STATUS_EXITED && is_end_status(record->wait_status)) {
		if (record->pid == 0)
			task_say(task, "slurmckpt: the task could not be started: cannot fork");
		task_ended(pod, task, record->wait_status);
	}
}

void leader_read_status(struct pod *pod)
{
	/* what a pipe holds at a time: somebody who writes without end must not keep this process here */
	int left = 65536 / sizeof(struct status_record);
	struct status_record record;
	ssize_t got;

	do {
		got = read(pod->status_read, pod->status_bytes + pod->status_size, sizeof(record) - pod->status_size);
		if (got > 0)
			pod->status_size += (size_t)got;
		if (pod->status_size == sizeof(record)) {
			memcpy(&record, pod->status_bytes, sizeof(record));
			pod->status_size = 0;
			take_record(pod, &record);
			left--;
		}
	} while (left > 0 && (got > 0 || (got < 0 && errno == EINTR)));
}

/* What the leader said before it ended, or that it did not say anything. */
static void describe_end(const struct pod *pod, int wait_status, struct reason *reason)
{
	if (pod->leader_reason.text[0])
		refuse(reason, "the leader failed: %s", pod->leader_reason.text);
	else if (WIFSIGNALED(wait_status))
		refuse(reason, "the leader of the pod was killed by signal %d", WTERMSIG(wait_status));
	else
		refuse(reason, "the leader of the pod ended with exit code %d", WEXITSTATUS(wait_status));
}

void leader_ended(struct pod *pod, int wait_status)
{
	struct reason reason;

	pod->leader = 0;
	/* what it has said has come; its end need not, while a task that has not begun its program holds the socket, too */
	while (pod->setup.fd >= 0 && !pod->leader_reason.text[0] && leader_serve(pod))
		;
	peer_close(&pod->setup);
	describe_end(pod, wait_status, &reason);
	if (pod->phase == PHASE_STARTING) {
		pod_fail(pod, &reason);
	} else if (pod->phase == PHASE_RUNNING) {
		leader_read_status(pod);
		/* what is left has nobody who could report its end */
		if (!tasks_all_over(pod))
			kill(-1, SIGKILL);
		for (size_t i = 0; i < pod->task_count; i++) {
			struct task *task = &pod->tasks[i];
			struct reason line;

			if (!task->announced || task_over(task))
				continue;
			refuse(&line, "slurmckpt: the task is killed: %.400s", reason.text);
			task_say(task, line.text);
			task_ended(pod, task, SIGKILL);
		}
	}
}
