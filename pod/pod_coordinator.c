/* The coordinator's connection: what it wants of the pod, and what it is told. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pids.h"
#include "pod.h"

void pod_post(struct pod *pod, struct message *message)
{
	peer_post(&pod->coordinator, message);
}

void pod_post_verb(struct pod *pod, const char *verb)
{
	struct message note;

	message_start(&note, verb);
	pod_post(pod, &note);
}

static void post_failed(struct pod *pod, const struct reason *reason)
{
	struct message note;

	message_start(&note, "FAILED");
	message_add(&note, "reason", "%s", reason->text);
	pod_post(pod, &note);
}

void pod_fail(struct pod *pod, const struct reason *reason)
{
	post_failed(pod, reason);
	pod->phase = PHASE_ENDED;
}

/* ---- its messages: each returns 0, or -1 with the reason ---- */

static int take_leader(struct pod *pod, struct message *message, struct reason *reason)
{
	const char *path = message_value(message, "path");
	uint64_t count, pid;

	if (pod->phase != PHASE_EMPTY)
		return refuse(reason, "LEADER came while the pod is not empty");
	if (!path || path[0] != '/')
		return refuse(reason, "LEADER needs path=, absolute");
	if (!message_number(message, "ntasks", POD_TASKS_MAX, &count) || count == 0)
		return refuse(reason, "LEADER needs ntasks= from 1 to %d", POD_TASKS_MAX);
	if (!message_number(message, "pid", INT32_MAX, &pid) || pid < 2)
		return refuse(reason, "LEADER needs pid=, from 2 on");
	tasks_reset(pod);
	pod->expected = count;
	pod->phase = PHASE_STARTING;
	if (leader_start(pod, path, (pid_t)pid, reason))
		return -1;
	peer_post(&pod->setup, message);
	return 0;
}

static int take_task(struct pod *pod, struct message *message, struct reason *reason)
{
	uint64_t index;
	int shim;

	if (pod->phase != PHASE_STARTING || tasks_announced(pod) == pod->expected)
		return refuse(reason, "TASK came without a LEADER that expects it");
	if (!message_number(message, "index", INT32_MAX, &index) || message->fd_count < 2)
		return refuse(reason, "TASK needs index= and at least two descriptors");
	shim = message_take_fd(message, 0);
	if (!tasks_announce(pod, (uint32_t)index, shim, reason)) {
		close(shim);
		return -1;
	}
	/* the leader gets the same without the shim's connection */
	message->fd_count--;
	memmove(message->fds, message->fds + 1, message->fd_count * sizeof(*message->fds));
	peer_post(&pod->setup, message);
	return 0;
}

static int take_last_pid(const struct message *message, struct reason *reason)
{
	uint64_t pid;

	if (!message_number(message, "pid", INT32_MAX, &pid) || pid < 1)
		return refuse(reason, "LASTPID needs pid=, from 1 on");
	return pids_continue_after((pid_t)pid, reason);
}

static int take_adopt(struct pod *pod, struct message *message, struct reason *reason)
{
	uint64_t leader;

	if (pod->phase != PHASE_EMPTY)
		return refuse(reason, "ADOPT came while the pod is not empty");
	if (!message_number(message, "leader", INT32_MAX, &leader) || leader < 2)
		return refuse(reason, "ADOPT needs leader=, a pid of the pod");
	tasks_reset(pod);
	pod->leader_reason.text[0] = '\0';
	pod->leader = (pid_t)leader;
	pod->phase = PHASE_ADOPTING;
	return 0;
}

static int take_shim(struct pod *pod, struct message *message, struct reason *reason)
{
	struct task *task;
	uint64_t index, pid;
	int shim;

	if (pod->phase != PHASE_ADOPTING)
		return refuse(reason, "SHIM came without an ADOPT");
	if (!message_number(message, "index", INT32_MAX, &index) || !message_number(message, "pid", INT32_MAX, &pid) || pid < 2)
		return refuse(reason, "SHIM needs index= and pid=");
	shim = message_take_fd(message, 0);
	task = tasks_announce(pod, (uint32_t)index, shim, reason);
	if (!task) {
		if (shim >= 0)
			close(shim);
		return -1;
	}
	task->pid = (pid_t)pid;
	return 0;
}

static int take_go(struct pod *pod, struct message *message, struct reason *reason)
{
	if (pod->phase == PHASE_STARTING && tasks_announced(pod) == pod->expected) {
		pod->phase = PHASE_RUNNING;
		peer_post(&pod->setup, message);
	} else if (pod->phase == PHASE_ADOPTING && tasks_announced(pod) > 0) {
		pod->phase = PHASE_RUNNING;
		for (size_t i = 0; i < pod->task_count; i++) {
			if (pod->tasks[i].announced)
				task_started(pod, &pod->tasks[i], pod->tasks[i].pid);
		}
		/* it may have ended, and been reaped, before anybody knew that it is the leader */
		if (pod->leader < 2 || kill(pod->leader, 0)) {
			refuse(&pod->leader_reason, "it ended before GO");
			leader_ended(pod, 0);
		}
	} else {
		return refuse(reason, "GO came before all tasks were announced");
	}
	return 0;
}

static int take_say(struct pod *pod, const struct message *message, struct reason *reason)
{
	const char *text = message_value(message, "text");
	struct task *first = NULL;

	if (!text)
		return refuse(reason, "SAY needs text=");
	for (size_t i = 0; i < pod->task_count; i++) {
		struct task *task = &pod->tasks[i];

		if (!task->ended && task->shim.fd >= 0 && (!first || task->index < first->index))
			first = task;
	}
	if (first)
		task_say(first, text);
	return 0;
}

static void answer_sync(struct pod *pod)
{
	struct reason reason;
	struct message answer;
	pid_t last;

	if (pod->phase == PHASE_RUNNING)
		leader_read_status(pod);
	last = pids_last(&reason);
	message_start(&answer, "SYNCED");
	if (last > 0)
		message_add(&answer, "last_pid", "%d", last);
	pod_post(pod, &answer);
}

static void begin_kill(struct pod *pod)
{
	/* ends from before this are ends; those from now on are our doing, and the tasks may be restored */
	if (pod->phase == PHASE_RUNNING)
		leader_read_status(pod);
	hold_forget_exits(pod);
	peer_close(&pod->setup);
	pod->phase = PHASE_KILLING;
}

static int take_message(struct pod *pod, struct message *message, struct reason *reason)
{
	int result = 0;

	if (message_is(message, "LEADER")) {
		result = take_leader(pod, message, reason);
	} else if (message_is(message, "TASK")) {
		result = take_task(pod, message, reason);
	} else if (message_is(message, "LASTPID")) {
		result = take_last_pid(message, reason);
	} else if (message_is(message, "ADOPT")) {
		result = take_adopt(pod, message, reason);
	} else if (message_is(message, "SHIM")) {
		result = take_shim(pod, message, reason);
	} else if (message_is(message, "GO")) {
		result = take_go(pod, message, reason);
	} else if (message_is(message, "SAY")) {
		result = take_say(pod, message, reason);
	} else if (message_is(message, "HOLD")) {
		result = hold_take_policy(pod, message, reason);
	} else if (message_is(message, "PASS")) {
		result = hold_take_pass(pod, message, reason);
	} else if (message_is(message, "SYNC")) {
		answer_sync(pod);
	} else if (message_is(message, "KILL")) {
		begin_kill(pod);
	} else {
		result = refuse(reason, "%.60s is not a message to pod init", message->bytes);
	}
	return result;
}

/* The coordinator is gone, or talks nonsense: tasks that run go on without it, and without tasks there is nothing to stay for. */
static void lose_coordinator(struct pod *pod)
{
	peer_close(&pod->coordinator);
	hold_set(pod, false, 0);
	if (pod->phase != PHASE_RUNNING && pod->phase != PHASE_KILLING)
		pod->phase = PHASE_ENDED;
}

void pod_serve_coordinator(struct pod *pod)
{
	struct message message = MESSAGE_EMPTY;
	enum message_result result = message_receive(pod->coordinator.fd, &message, true, MSG_DONTWAIT);
	struct reason reason;
	bool refused = false;

	if (result == MESSAGE_GOT)
		refused = take_message(pod, &message, &reason);
	else if (result == MESSAGE_FAILED && errno == EBADMSG)
		refused = refuse(&reason, "malformed message");
	else if (result == MESSAGE_END || errno != EAGAIN)
		lose_coordinator(pod);
	if (refused && pod->phase == PHASE_RUNNING) {
		post_failed(pod, &reason);
		lose_coordinator(pod);
	} else if (refused) {
		pod_fail(pod, &reason);
	}
	message_free(&message);
}
