/*
 * Each signal reaches each process of the pod exactly as often as Slurm meant it to.
 *
 * Slurm sends a signal to one of three sets. To the task alone: its shim gets it, and we pass it on to the task. To the task's process group
 * (scancel --full): the shim and the anchor get it; the anchor's notice is passed on to the rest of the task's group in here. To every process
 * of the step (proctrack/linuxproc; proctrack/cgroup with SignalChildrenProcesses): then the processes of the pod have it already, and so has
 * this one, which is how we know: nothing is passed on.
 *
 * proctrack/linuxproc signals children before their parents (kill_tree.c, _get_list), so this process has its signal before the shim has its.
 * With SignalChildrenProcesses it is the other way round: then what the shims bring waits for a moment.
 */
#include "pod.h"

#include <ctype.h>
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

/* The longest time between one signal's arrival here and what shims and anchor say of it, on a node that is busy. */
#define SAME_SIGNAL_MS 1000
/* proctrack_p_signal's loop over the processes of a step takes about a microsecond for each. */
#define DOUBT_MS 200

static bool has_reached_all(const struct pod *pod, int number)
{
	return pod->direct[number] && clock_ms() - pod->direct[number] <= SAME_SIGNAL_MS;
}

void pod_signals_read(struct pod *pod)
{
	bool outside;
	int number;

	while ((number = signals_read_origin(pod->signals, &outside)) > 0) {
		if (number == SIGCHLD || !outside)
			continue;
		pod->direct[number] = clock_ms();
		pod->doubtful_group &= ~signal_bit(number);
		for (size_t i = 0; i < pod->task_count; i++) {
			struct task *task = &pod->tasks[i];

			task->doubtful &= ~signal_bit(number);
			if (pod->phase == PHASE_RUNNING && task->pid && !task->ended)
				tasks_note_signal(pod, task->index, number);
		}
	}
}

/* The tasks of a step share one process group (leader.c). They themselves get what their shims bring. */
static bool is_in_group(const struct pod *pod, pid_t pid)
{
	pid_t group = pid > 1 ? getpgid(pid) : -1;
	bool found = false;

	for (size_t i = 0; i < pod->task_count; i++) {
		const struct task *task = &pod->tasks[i];

		if (task->pid == pid)
			return false;
		found = found || (task->pid > 1 && !task->ended && getpgid(task->pid) == group);
	}
	return found && pid != pod->leader;
}

static void signal_group(const struct pod *pod, int number)
{
	DIR *directory = pod->phase == PHASE_RUNNING ? opendir("/proc") : NULL;
	struct dirent *entry;

	while (directory && (entry = readdir(directory))) {
		pid_t pid = isdigit((unsigned char)entry->d_name[0]) ? (pid_t)atoi(entry->d_name) : 0;

		if (is_in_group(pod, pid))
			kill(pid, number);
	}
	if (directory)
		closedir(directory);
}

static void doubt(struct pod *pod, signal_mask *doubtful, int number)
{
	*doubtful |= signal_bit(number);
	if (!pod->doubt_until)
		pod->doubt_until = clock_ms() + DOUBT_MS;
}

/* The coordinator may want to decide about it first. */
static void bring(struct pod *pod, struct task *task, int number)
{
	if (!hold_signal(pod, task, number))
		task_signal(pod, task, number);
}

void pod_signal_task(struct pod *pod, struct task *task, int number)
{
	/* a task that is not there yet has not been reached */
	bool there = pod->phase == PHASE_RUNNING && task->pid;

	if (there && has_reached_all(pod, number))
		return;
	if (there && pod->doubt_signals)
		doubt(pod, &task->doubtful, number);
	else
		bring(pod, task, number);
}

void pod_serve_anchor(struct pod *pod)
{
	struct message message = MESSAGE_EMPTY;
	enum message_result result = message_receive(pod->anchor, &message, false, MSG_DONTWAIT);
	uint64_t number = 0;

	if (result == MESSAGE_GOT && message_is(&message, "GROUP") && message_number(&message, "n", SIGNAL_MAX, &number) && number > 0) {
		if (!has_reached_all(pod, (int)number)) {
			if (pod->doubt_signals)
				doubt(pod, &pod->doubtful_group, (int)number);
			else
				signal_group(pod, (int)number);
		}
	} else if (result != MESSAGE_FAILED) {
		close(pod->anchor);
		pod->anchor = -1;
	}
	message_free(&message);
}

int pod_signals_patience(const struct pod *pod)
{
	return pod->doubt_until ? clock_ms_until(pod->doubt_until) : -1;
}

void pod_signals_release(struct pod *pod)
{
	if (!pod->doubt_until || clock_ms_until(pod->doubt_until) > 0)
		return;
	pod->doubt_until = 0;
	for (int number = 1; number <= SIGNAL_MAX; number++) {
		if (pod->doubtful_group & signal_bit(number))
			signal_group(pod, number);
		for (size_t i = 0; i < pod->task_count; i++) {
			if (pod->tasks[i].doubtful & signal_bit(number))
				bring(pod, &pod->tasks[i], number);
		}
	}
	pod->doubtful_group = 0;
	for (size_t i = 0; i < pod->task_count; i++)
		pod->tasks[i].doubtful = 0;
}
