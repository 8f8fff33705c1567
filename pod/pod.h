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
	bool ended;
	bool abandoned;		/* its shim is gone: it is to be killed */
	pid_t pid;		/* inside the pod; 0: not known yet */
	signal_mask pending;	/* came while pid was not known */
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
	int status_read;
	int status_write;
	unsigned char status_bytes[sizeof(struct status_record)];
	size_t status_size;
	size_t expected;	/* tasks that LEADER has announced */
	struct task *tasks;
	size_t task_count;
};

/* ---- pod.c ---- */

/* Serves coordinator, leader and shims until the pod has ended. control and signals are descriptors; pid is what READY shall say. */
int pod_serve(int control, int signals, pid_t pid, struct reason *reason);

/* A note to the coordinator. Descriptors of the message are taken over. */
void pod_post(struct pod *pod, struct message *message);

/* The pod cannot go on; the coordinator is told why. */
void pod_fail(struct pod *pod, const struct reason *reason);

/* ---- pod_tasks.c ---- */

/* A fresh announcement: no task belongs to the pod, but shims and signals that wait for their task are kept. */
void tasks_reset(struct pod *pod);
/* The task of this index, announced; shim (may be -1: the one it has) becomes its connection. NULL when that cannot be. */
struct task *tasks_announce(struct pod *pod, uint32_t index, int shim, struct reason *reason);
struct task *tasks_find(struct pod *pod, uint32_t index);
size_t tasks_announced(const struct pod *pod);
bool tasks_all_ended(const struct pod *pod);
bool tasks_all_abandoned(const struct pod *pod);

/* The process is there: what has waited for it is delivered. */
void task_started(struct pod *pod, struct task *task, pid_t pid);
void task_ended(struct pod *pod, struct task *task, int wait_status);
/* A line for the user: lost when the shim is slow. */
void task_say(struct task *task, const char *text);
/* One message of its shim, or the end of the connection. */
void task_serve_shim(struct pod *pod, struct task *task);

/* ---- pod_leader.c ---- */

int leader_start(struct pod *pod, const char *path, struct reason *reason);
/* One message of the leader during setup. */
void leader_serve(struct pod *pod);
/* What the leader has reported so far. */
void leader_read_status(struct pod *pod);
/* The leader is dead. */
void leader_ended(struct pod *pod, int wait_status);
/* The next process of the pod gets the pid after this one, if it is free. */
int leader_set_last_pid(int pid, struct reason *reason);

#endif
