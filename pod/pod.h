/* A pod, as its pid 1 knows it. */
#ifndef SLURMCKPT_POD_H
#define SLURMCKPT_POD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "message.h"
#include "outbox.h"
#include "reason.h"
#include "signals.h"
#include "status.h"

#define POD_TASKS_MAX 65536
/* Notes about signals that a coordinator has not read; beyond that it does not look at them anyway. */
#define POD_NOTES_MAX 1024
/* While processes that were killed are not dead yet, look again this often. */
#define POD_KILL_INTERVAL_MS 10

enum phase {
	PHASE_EMPTY,	/* nothing runs: new, or after KILL */
	PHASE_STARTING,	/* LEADER has come, tasks are being announced */
	PHASE_ADOPTING,	/* ADOPT has come, shims are being announced */
	PHASE_RUNNING,	/* after GO */
	PHASE_KILLING,	/* KILL has come, not everything is dead yet */
	PHASE_ENDED,
};

struct task {
	uint32_t index;
	bool announced;		/* by the last LEADER or ADOPT */
	bool ended;		/* and its shim knows it */
	bool last;		/* of all to end: its shim waits until the pod is gone */
	bool exit_held;		/* its process has ended, its shim does not know yet */
	int held_status;	/* raw wait status of a held exit */
	int64_t exit_deadline;	/* of a held exit, as of clock_ms() */
	signal_mask held;	/* signals that its shim has sent, and that wait for the coordinator's word */
	int64_t signal_deadlines[SIGNAL_MAX];	/* of those; signal n at n-1 */
	bool abandoned;		/* its shim is gone: it is to be killed */
	pid_t pid;		/* inside the pod; 0: not known yet */
	signal_mask pending;	/* came while pid was not known */
	signal_mask doubtful;	/* may have reached the task already (pod_signals.c) */
	struct peer shim;
};

struct pod {
	enum phase phase;
	bool normal_end;	/* PHASE_ENDED: say DONE */
	struct peer coordinator;
	struct peer setup;	/* the leader, until GO has been sent */
	struct reason leader_reason;
	pid_t leader;
	int signals;
	int anchor;		/* link to it, or -1 */
	bool doubt_signals;	/* SignalChildrenProcesses is set */
	int64_t direct[SIGNAL_MAX + 1];	/* when each signal last came to every process of the step; milliseconds, 0: never */
	int64_t doubt_until;	/* 0: nothing is doubtful */
	signal_mask doubtful_group;
	int status_read;
	int status_write;
	unsigned char status_bytes[sizeof(struct status_record)];
	size_t status_size;
	struct {
		bool exits;		/* of tasks that end with a status other than 0 */
		signal_mask signals;
		int64_t patience;	/* in ms, then it passes by itself; 0: as HOLD_PATIENCE_MS says */
	} hold;			/* what waits for the coordinator's word */
	size_t expected;	/* tasks that LEADER has announced */
	struct task *tasks;
	size_t task_count;
};

/* ---- pod.c ---- */

/* What pod init starts with. Descriptors; anchor may be -1. pid is what READY shall say. */
struct pod_links {
	int control;
	int signals;
	int anchor;
	bool doubt_signals;
	pid_t pid;
};

/* Serves coordinator, leader, shims and anchor until the pod has ended. */
int pod_serve(const struct pod_links *links, struct reason *reason);

/* ---- pod_coordinator.c ---- */

/* One message of the coordinator, or the end of its connection. */
void pod_serve_coordinator(struct pod *pod);
/* A note to the coordinator. Descriptors of the message are taken over. */
void pod_post(struct pod *pod, struct message *message);
void pod_post_verb(struct pod *pod, const char *verb);
/* The pod cannot go on; the coordinator is told why. */
void pod_fail(struct pod *pod, const struct reason *reason);

/* ---- pod_end.c ---- */

/* Of processes that have ended. */
void pod_reap(struct pod *pod);
/* PHASE_KILLING: kills again what is not dead yet; when nothing is left, the pod is empty. */
void pod_continue_kill(struct pod *pod);
/* PHASE_ENDED when there is nothing to stay for. */
void pod_check_end(struct pod *pod);
/* The last that happens: what is left is killed, what was said is sent, and the anchor knows that nothing will follow. */
void pod_bury(struct pod *pod);

/* ---- pod_tasks.c ---- */

/* A fresh announcement: no task belongs to the pod, but shims and signals that wait for their task are kept. */
void tasks_reset(struct pod *pod);
/* The task of this index, announced; shim (may be -1: the one it has) becomes its connection. NULL when that cannot be. */
struct task *tasks_announce(struct pod *pod, uint32_t index, int shim, struct reason *reason);
struct task *tasks_find(struct pod *pod, uint32_t index);
size_t tasks_announced(const struct pod *pod);
bool tasks_all_ended(const struct pod *pod);
/* No process of a task is left: all have ended, though the exit of some may be held. */
bool tasks_all_over(const struct pod *pod);
bool task_over(const struct task *task);
bool tasks_all_abandoned(const struct pod *pod);

/* The process is there: what has waited for it is delivered. */
void task_started(struct pod *pod, struct task *task, pid_t pid);
void task_ended(struct pod *pod, struct task *task, int wait_status);
/* Its shim gets the status. */
void task_finish(struct pod *pod, struct task *task, int wait_status);
/* Delivers now, or when there is a process. */
void task_signal(struct pod *pod, struct task *task, int number);
/* A line for the user: lost when the shim is slow. */
void task_say(struct task *task, const char *text);
/* One message of its shim, or the end of the connection. */
void task_serve_shim(struct pod *pod, struct task *task);
/* Tells the coordinator of a signal, unless it does not listen. */
void tasks_note_signal(struct pod *pod, uint32_t index, int number);

/* ---- pod_signals.c ---- */

/* To be called before anything that a shim or the anchor says is looked at. */
void pod_signals_read(struct pod *pod);
/* Its shim got this signal. */
void pod_signal_task(struct pod *pod, struct task *task, int number);
/* One message of the anchor, or the end of the link. */
void pod_serve_anchor(struct pod *pod);
/* Milliseconds until pod_signals_release has something to do, for poll(2); -1: nothing. */
int pod_signals_patience(const struct pod *pod);
void pod_signals_release(struct pod *pod);

/* ---- pod_hold.c: exits and signals that wait until the coordinator has decided what becomes of them ---- */

/* True when it is held: then the shim learns of it later, or, if the task is restored, never. */
bool hold_exit(struct pod *pod, struct task *task, int wait_status);
bool hold_signal(struct pod *pod, struct task *task, int number);
/* What is held and not in the new policy passes. */
void hold_set(struct pod *pod, bool exits, signal_mask signals);
/* What has been held for too long passes. */
void hold_pass_due(struct pod *pod);
/* Until then, for poll(2); -1: nothing is held. */
int hold_patience(const struct pod *pod);
/* Its shim is gone. */
void hold_give_up(struct pod *pod, struct task *task);
/* The tasks may be restored: none of them has ended. */
void hold_forget_exits(struct pod *pod);
/* HOLD and PASS: 0, or -1 with the reason. */
int hold_take_policy(struct pod *pod, const struct message *message, struct reason *reason);
int hold_take_pass(struct pod *pod, const struct message *message, struct reason *reason);

/* ---- pod_leader.c ---- */

/* The leader gets this pid, and its tasks those after it. */
int leader_start(struct pod *pod, const char *path, pid_t pid, struct reason *reason);
/* One message of the leader during setup, or the end of the connection; false when there is neither yet. */
bool leader_serve(struct pod *pod);
/* What the leader has reported so far. */
void leader_read_status(struct pod *pod);
/* The leader is dead. */
void leader_ended(struct pod *pod, int wait_status);

#endif
