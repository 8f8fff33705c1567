/* How processes of the pod end: reaped, killed at the coordinator's word, and all that are left with the pod. */
#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "farewell.h"
#include "pids.h"
#include "pod.h"

/* At the end of the pod: the longest wait for its processes, and for peers to take their last messages. */
#define END_PATIENCE_MS 2000

void pod_reap(struct pod *pod)
{
	int wait_status;
	pid_t pid;

	while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
		if (pid == pod->leader)
			leader_ended(pod, wait_status);
	}
}

/* True when no process is left but this one. kill finds zombies as well, so nothing is left unreaped either. */
static bool all_killed(struct pod *pod)
{
	bool none = kill(-1, SIGKILL) && errno == ESRCH;

	if (!none)
		pod_reap(pod);
	return none;
}

static void discard_status(struct pod *pod)
{
	char bytes[4096];

	while (read(pod->status_read, bytes, sizeof(bytes)) > 0)
		;
	pod->status_size = 0;
}

void pod_continue_kill(struct pod *pod)
{
	struct reason reason;

	if (!all_killed(pod))
		return;
	discard_status(pod);
	pod->leader = 0;
	/* As in a new pod: CRIU gets low pids, which are in no image. Without it only a restore after very many processes could fail. */
	pids_continue_after(1, &reason);
	pod_post_verb(pod, "KILLED");
	pod->phase = pod->coordinator.fd < 0 ? PHASE_ENDED : PHASE_EMPTY;
}

/* Their shims are gone, and so will they be: nobody waits until the leader has noticed. */
static void report_abandoned(struct pod *pod)
{
	leader_read_status(pod);
	for (size_t i = 0; i < pod->task_count; i++) {
		if (pod->tasks[i].announced && !pod->tasks[i].ended)
			task_ended(pod, &pod->tasks[i], SIGKILL);
	}
}

void pod_check_end(struct pod *pod)
{
	bool complete = pod->phase == PHASE_RUNNING || pod->phase == PHASE_EMPTY ||
			(pod->phase == PHASE_STARTING && tasks_announced(pod) == pod->expected);

	if (pod->phase == PHASE_RUNNING && tasks_all_abandoned(pod))
		report_abandoned(pod);
	if ((pod->phase == PHASE_RUNNING && tasks_all_ended(pod)) || (complete && tasks_all_abandoned(pod))) {
		pod->phase = PHASE_ENDED;
		pod->normal_end = true;
	}
}

static bool something_waits(const struct pod *pod)
{
	bool waits = pod->coordinator.first != NULL;

	for (size_t i = 0; i < pod->task_count; i++)
		waits = waits || pod->tasks[i].shim.first;
	return waits;
}

static void flush_all(struct pod *pod)
{
	peer_flush(&pod->coordinator);
	for (size_t i = 0; i < pod->task_count; i++)
		peer_flush(&pod->tasks[i].shim);
}

/* The anchor ends after this process, and says so to the last shim. */
static void hand_to_anchor(struct pod *pod, struct task *last)
{
	struct message over;

	message_start(&over, "OVER");
	message_add_fd(&over, last->shim.fd);
	last->shim.fd = -1;
	message_send(pod->anchor, &over, MSG_DONTWAIT);
	message_free(&over);
}

/*
 * The shim of the task that has ended last waits until nothing else of the step is left: what slurmstepd finds then it kills, and it sleeps for a
 * second before it looks again (proctrack_p_wait in both of its plugins). For each step of a job.
 */
static void take_leave(struct pod *pod)
{
	for (size_t i = 0; i < pod->task_count; i++) {
		struct task *task = &pod->tasks[i];

		if (!task->last || task->shim.fd < 0)
			continue;
		if (pod->anchor >= 0)
			hand_to_anchor(pod, task);
		else
			farewell_say(task->shim.fd);
	}
}

/*
 * Orphans of the tasks are killed as slurmstepd would kill them. Everything here has a bound: when this process ends, the kernel kills and
 * reaps the rest of the pod itself.
 */
void pod_bury(struct pod *pod)
{
	const struct timespec interval = {.tv_nsec = POD_KILL_INTERVAL_MS * 1000000L};
	int left = END_PATIENCE_MS / POD_KILL_INTERVAL_MS;

	/* no more news about tasks from here on */
	pod->leader = 0;
	for (; left > 0 && !all_killed(pod); left--)
		nanosleep(&interval, NULL);
	if (pod->normal_end)
		pod_post_verb(pod, "DONE");
	for (flush_all(pod); left > 0 && something_waits(pod); left--) {
		nanosleep(&interval, NULL);
		flush_all(pod);
	}
	take_leave(pod);
}
