/* The tasks of a pod and the shims that stand for them: announced, found, told how they have ended. */
#include "pod.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* More than a shim prints of one line. */
#define SAY_MAX "4000"

void tasks_reset(struct pod *pod)
{
	for (size_t i = 0; i < pod->task_count; i++) {
		struct task *task = &pod->tasks[i];

		task->announced = false;
		task->ended = false;
		task->last = false;
		task->exit_held = false;
		task->pid = 0;
		task->pending |= task->doubtful;
		task->doubtful = 0;
	}
}

struct task *tasks_find(struct pod *pod, uint32_t index)
{
	struct task *found = NULL;

	for (size_t i = 0; i < pod->task_count && !found; i++) {
		if (pod->tasks[i].index == index)
			found = &pod->tasks[i];
	}
	return found;
}

struct task *tasks_announce(struct pod *pod, uint32_t index, int shim, struct reason *reason)
{
	struct task *task = tasks_find(pod, index);

	if (task && task->announced) {
		refuse(reason, "task %u is announced twice", index);
		return NULL;
	}
	if (!task && shim < 0) {
		refuse(reason, "task %u has no shim's connection", index);
		return NULL;
	}
	if (!task) {
		struct task *grown = realloc(pod->tasks, (pod->task_count + 1) * sizeof(*grown));

		if (!grown) {
			refuse(reason, "out of memory");
			return NULL;
		}
		pod->tasks = grown;
		task = &grown[pod->task_count++];
		*task = (struct task){.index = index, .shim = PEER_NONE};
	}
	if (shim >= 0) {
		peer_close(&task->shim);
		task->shim.fd = shim;
		task->abandoned = false;
	}
	task->announced = true;
	return task;
}

size_t tasks_announced(const struct pod *pod)
{
	size_t count = 0;

	for (size_t i = 0; i < pod->task_count; i++)
		count += pod->tasks[i].announced;
	return count;
}

bool tasks_all_ended(const struct pod *pod)
{
	bool all = true;

	for (size_t i = 0; i < pod->task_count; i++)
		all = all && (!pod->tasks[i].announced || pod->tasks[i].ended);
	return all;
}

bool task_over(const struct task *task)
{
	return task->ended || task->exit_held;
}

bool tasks_all_over(const struct pod *pod)
{
	bool all = true;

	for (size_t i = 0; i < pod->task_count; i++)
		all = all && (!pod->tasks[i].announced || task_over(&pod->tasks[i]));
	return all;
}

bool tasks_all_abandoned(const struct pod *pod)
{
	bool all = tasks_announced(pod) > 0;

	for (size_t i = 0; i < pod->task_count; i++)
		all = all && (!pod->tasks[i].announced || pod->tasks[i].abandoned);
	return all;
}

/*
 * Pids come from the status pipe, which the job's user can reach through the leader's /proc/PID/fd, and this process is root: a signal only
 * goes to a child of the leader. That is what a task is.
 */
static bool is_child_of(pid_t pid, pid_t parent)
{
	char path[64], line[512];
	const char *end;
	size_t size = 0;
	FILE *file;
	int found = 0;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "re");
	if (file) {
		size = fread(line, 1, sizeof(line) - 1, file);
		fclose(file);
	}
	line[size] = '\0';
	/* "pid (name) state ppid ...", and the name may hold anything */
	end = strrchr(line, ')');
	return end && sscanf(end, ") %*c %d", &found) == 1 && found == parent;
}

static bool kill_task(struct pod *pod, struct task *task, int number)
{
	return pod->leader > 1 && task->pid > 1 && is_child_of(task->pid, pod->leader) && !kill(task->pid, number);
}

void tasks_note_signal(struct pod *pod, uint32_t index, int number)
{
	struct message note;

	if (pod->coordinator.waiting < POD_NOTES_MAX) {
		message_start(&note, "SIGNALLED");
		message_add(&note, "index", "%u", index);
		message_add(&note, "n", "%d", number);
		pod_post(pod, &note);
	}
}

void task_signal(struct pod *pod, struct task *task, int number)
{
	if (task->ended)
		return;
	/* an exit that is held may yet be undone, and the task that is restored then gets it */
	if (pod->phase != PHASE_RUNNING || !task->pid || task->exit_held) {
		task->pending |= signal_bit(number);
		return;
	}
	if (kill_task(pod, task, number))
		tasks_note_signal(pod, task->index, number);
}

void task_started(struct pod *pod, struct task *task, pid_t pid)
{
	signal_mask pending = task->pending;

	task->pid = pid;
	task->pending = 0;
	for (int number = 1; number <= SIGNAL_MAX; number++) {
		if (pending & signal_bit(number))
			task_signal(pod, task, number);
	}
	if (task->abandoned)
		kill_task(pod, task, SIGKILL);
}

void task_finish(struct pod *pod, struct task *task, int wait_status)
{
	struct message word;

	task->ended = true;
	task->last = tasks_all_ended(pod);
	task->pending = task->held = task->doubtful = 0;
	message_start(&word, "EXIT");
	message_add(&word, "status", "%d", wait_status);
	if (task->last)
		message_add(&word, "last", "yes");
	peer_post(&task->shim, &word);
}

void task_ended(struct pod *pod, struct task *task, int wait_status)
{
	bool held = hold_exit(pod, task, wait_status);
	struct message note;

	message_start(&note, "EXITED");
	message_add(&note, "index", "%u", task->index);
	message_add(&note, "status", "%d", wait_status);
	if (held)
		message_add(&note, "held", "yes");
	pod_post(pod, &note);
	if (!held)
		task_finish(pod, task, wait_status);
}

void task_say(struct task *task, const char *text)
{
	struct pollfd room = {.fd = task->shim.fd, .events = POLLOUT};
	struct message word;

	/* a unix socket is writable while three quarters of its buffer are free: the rest is for EXIT, which must always find room */
	if (task->shim.fd >= 0 && task->shim.waiting == 0 && poll(&room, 1, 0) == 1 && (room.revents & POLLOUT)) {
		message_start(&word, "SAY");
		message_add(&word, "text", "%." SAY_MAX "s", text);
		peer_post(&task->shim, &word);
	}
}

static void abandon(struct pod *pod, struct task *task)
{
	peer_close(&task->shim);
	task->abandoned = true;
	hold_give_up(pod, task);
	if (pod->phase == PHASE_RUNNING && task->announced && !task->ended && task->pid)
		kill_task(pod, task, SIGKILL);
}

void task_serve_shim(struct pod *pod, struct task *task)
{
	struct message message = MESSAGE_EMPTY;
	enum message_result result = message_receive(task->shim.fd, &message, false, MSG_DONTWAIT);
	uint64_t number = 0;

	if (result == MESSAGE_GOT && message_is(&message, "SIGNAL") && message_number(&message, "n", SIGNAL_MAX, &number) && number > 0) {
		pod_signal_task(pod, task, (int)number);
	} else if (result == MESSAGE_GOT || (result == MESSAGE_FAILED && errno == EBADMSG)) {
		/* it is not one of our shims any more */
		task_say(task, "slurmckpt: malformed message from the task shim, the task is killed");
		abandon(pod, task);
	} else if (result == MESSAGE_END || errno != EAGAIN) {
		abandon(pod, task);
	}
	message_free(&message);
}
