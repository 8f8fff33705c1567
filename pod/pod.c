#include "pod.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* While processes that were killed are not dead yet, look again this often. */
#define KILL_INTERVAL_MS 10
/* At the end of the pod: the longest wait for its processes, and for peers to take their last messages. */
#define END_PATIENCE_MS 2000

/* poll's entries before those of the tasks' shims */
enum { POLL_SIGNALS, POLL_STATUS, POLL_COORDINATOR, POLL_SETUP, POLL_ANCHOR, POLL_TASKS };

void pod_post(struct pod *pod, struct message *message)
{
	peer_post(&pod->coordinator, message);
}

static void post_verb(struct pod *pod, const char *verb)
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

/* ---- the coordinator's messages: each returns 0, or -1 with the reason ---- */

static int take_leader(struct pod *pod, struct message *message, struct reason *reason)
{
	const char *path = message_value(message, "path");
	uint64_t count;

	if (pod->phase != PHASE_EMPTY)
		return refuse(reason, "LEADER came while the pod is not empty");
	if (!path || path[0] != '/')
		return refuse(reason, "LEADER needs path=, absolute");
	if (!message_number(message, "ntasks", POD_TASKS_MAX, &count) || count == 0)
		return refuse(reason, "LEADER needs ntasks= from 1 to %d", POD_TASKS_MAX);
	tasks_reset(pod);
	pod->expected = count;
	pod->phase = PHASE_STARTING;
	if (leader_start(pod, path, reason))
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
		if (pod->phase == PHASE_RUNNING)
			leader_read_status(pod);
		post_verb(pod, "SYNCED");
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

static void serve_coordinator(struct pod *pod)
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

/* ---- processes ---- */

static void reap(struct pod *pod)
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
		reap(pod);
	return none;
}

static void discard_status(struct pod *pod)
{
	char bytes[4096];

	while (read(pod->status_read, bytes, sizeof(bytes)) > 0)
		;
	pod->status_size = 0;
}

static void continue_kill(struct pod *pod)
{
	struct reason reason;

	if (!all_killed(pod))
		return;
	discard_status(pod);
	pod->leader = 0;
	/* as in a new pod: what a restore starts gets low pids. Without it only a restore after very many processes could fail. */
	leader_set_last_pid(1, &reason);
	post_verb(pod, "KILLED");
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

static void check_end(struct pod *pod)
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

/* ---- the loop ---- */

static struct pollfd poll_entry(const struct peer *peer)
{
	return (struct pollfd){.fd = peer->fd, .events = POLLIN | (peer->first ? POLLOUT : 0)};
}

static bool readable(const struct pollfd *entry)
{
	return entry->revents & (POLLIN | POLLHUP | POLLERR);
}

static void flush(struct peer *peer, const struct pollfd *entry)
{
	if (peer->fd >= 0 && (entry->revents & POLLOUT))
		peer_flush(peer);
}

static void dispatch(struct pod *pod, const struct pollfd *entries, size_t task_entries)
{
	/* a signal that came between poll and here belongs to what the shims say now */
	pod_signals_read(pod);
	/* Shims before the coordinator, whose messages may change the list of tasks that the entries stand for. */
	for (size_t i = 0; i < task_entries; i++) {
		struct task *task = &pod->tasks[i];

		flush(&task->shim, &entries[POLL_TASKS + i]);
		if (readable(&entries[POLL_TASKS + i]))
			task_serve_shim(pod, task);
	}
	if (pod->phase == PHASE_RUNNING && readable(&entries[POLL_STATUS]))
		leader_read_status(pod);
	flush(&pod->setup, &entries[POLL_SETUP]);
	if (pod->setup.fd >= 0 && readable(&entries[POLL_SETUP]))
		leader_serve(pod);
	if (pod->anchor >= 0 && readable(&entries[POLL_ANCHOR]))
		pod_serve_anchor(pod);
	pod_signals_release(pod);
	if (readable(&entries[POLL_SIGNALS]))
		reap(pod);
	flush(&pod->coordinator, &entries[POLL_COORDINATOR]);
	if (pod->phase != PHASE_ENDED && readable(&entries[POLL_COORDINATOR]))
		serve_coordinator(pod);
}

/* How long poll may wait. */
static int patience(const struct pod *pod)
{
	int held = hold_patience(pod), doubtful = pod_signals_patience(pod);
	int first = held < 0 || (doubtful >= 0 && doubtful < held) ? doubtful : held;

	return pod->phase == PHASE_KILLING ? KILL_INTERVAL_MS : first;
}

static int run(struct pod *pod, struct reason *reason)
{
	struct pollfd *entries = NULL;
	int result = -1;

	while (pod->phase != PHASE_ENDED) {
		size_t task_entries = pod->task_count;
		struct pollfd *grown = realloc(entries, (POLL_TASKS + task_entries) * sizeof(*entries));

		if (!grown) {
			refuse(reason, "out of memory");
			goto out;
		}
		entries = grown;
		entries[POLL_SIGNALS] = (struct pollfd){.fd = pod->signals, .events = POLLIN};
		entries[POLL_STATUS] = (struct pollfd){.fd = pod->phase == PHASE_RUNNING ? pod->status_read : -1, .events = POLLIN};
		entries[POLL_COORDINATOR] = poll_entry(&pod->coordinator);
		entries[POLL_SETUP] = poll_entry(&pod->setup);
		entries[POLL_ANCHOR] = (struct pollfd){.fd = pod->anchor, .events = POLLIN};
		for (size_t i = 0; i < task_entries; i++)
			entries[POLL_TASKS + i] = poll_entry(&pod->tasks[i].shim);
		if (poll(entries, POLL_TASKS + task_entries, patience(pod)) < 0)
			continue;
		dispatch(pod, entries, task_entries);
		hold_pass_due(pod);
		if (pod->phase == PHASE_KILLING)
			continue_kill(pod);
		check_end(pod);
	}
	result = 0;
out:
	free(entries);
	return result;
}

/* ---- the end ---- */

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

/*
 * Orphans of the tasks are killed as slurmstepd would kill them. Everything here has a bound: when this process ends, the kernel kills and
 * reaps the rest of the pod itself.
 */
static void end_pod(struct pod *pod)
{
	const struct timespec interval = {.tv_nsec = KILL_INTERVAL_MS * 1000000L};
	int left = END_PATIENCE_MS / KILL_INTERVAL_MS;

	/* no more news about tasks from here on */
	pod->leader = 0;
	for (; left > 0 && !all_killed(pod); left--)
		nanosleep(&interval, NULL);
	if (pod->normal_end)
		post_verb(pod, "DONE");
	for (flush_all(pod); left > 0 && something_waits(pod); left--) {
		nanosleep(&interval, NULL);
		flush_all(pod);
	}
}

static int open_status_pipe(struct pod *pod, struct reason *reason)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return refuse(reason, "cannot create the status pipe: %s", strerror(errno));
	pod->status_read = ends[0];
	pod->status_write = ends[1];
	/* only this end: the leader writes with patience */
	if (fcntl(ends[0], F_SETFL, O_NONBLOCK))
		return refuse(reason, "cannot set up the status pipe: %s", strerror(errno));
	return 0;
}

static void post_ready(struct pod *pod, pid_t pid)
{
	struct message ready;

	message_start(&ready, "READY");
	message_add(&ready, "pid", "%d", pid);
	message_add_fd(&ready, fcntl(pod->status_write, F_DUPFD_CLOEXEC, 3));
	pod_post(pod, &ready);
}

int pod_serve(const struct pod_links *links, struct reason *reason)
{
	struct pod pod = {
		.coordinator = {.fd = links->control},
		.setup = PEER_NONE,
		.signals = links->signals,
		.anchor = links->anchor,
		.doubt_signals = links->doubt_signals,
		.status_read = -1,
		.status_write = -1,
	};
	int result = -1;

	if (open_status_pipe(&pod, reason))
		goto out;
	post_ready(&pod, links->pid);
	result = run(&pod, reason);
	end_pod(&pod);
out:
	/* the end of this process closes and frees everything */
	return result;
}
