#include "pod.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pids.h"

/* poll's entries before those of the tasks' shims */
enum { POLL_SIGNALS, POLL_STATUS, POLL_COORDINATOR, POLL_SETUP, POLL_ANCHOR, POLL_TASKS };

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
	/* whatever poll has said: the signal of an end that came after it has been read above, and there is no other */
	pod_reap(pod);
	flush(&pod->coordinator, &entries[POLL_COORDINATOR]);
	if (pod->phase != PHASE_ENDED && readable(&entries[POLL_COORDINATOR]))
		pod_serve_coordinator(pod);
}

/* How long poll may wait. */
static int patience(const struct pod *pod)
{
	int held = hold_patience(pod), doubtful = pod_signals_patience(pod);
	int first = held < 0 || (doubtful >= 0 && doubtful < held) ? doubtful : held;

	return pod->phase == PHASE_KILLING ? POD_KILL_INTERVAL_MS : first;
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
			pod_continue_kill(pod);
		pod_check_end(pod);
	}
	result = 0;
out:
	free(entries);
	return result;
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

static int post_ready(struct pod *pod, pid_t pid, struct reason *reason)
{
	struct message ready;
	pid_t max = pids_max(reason);

	if (max < 0)
		return -1;
	message_start(&ready, "READY");
	message_add(&ready, "pid", "%d", pid);
	message_add(&ready, "pid_max", "%d", max);
	message_add_fd(&ready, fcntl(pod->status_write, F_DUPFD_CLOEXEC, 3));
	pod_post(pod, &ready);
	return 0;
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

	if (open_status_pipe(&pod, reason) || post_ready(&pod, links->pid, reason))
		goto out;
	result = run(&pod, reason);
	pod_bury(&pod);
out:
	/* the end of this process closes and frees everything */
	return result;
}
