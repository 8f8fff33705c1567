/* What waits for the coordinator's word before anybody outside learns of it: ends of tasks, and signals to them. */
#include "pod.h"

#include <string.h>

#include "clock.h"
#include "number.h"

/* For so long the coordinator may think about what is held: then it passes by itself, whatever has become of the coordinator. */
#ifndef HOLD_PATIENCE_MS
#define HOLD_PATIENCE_MS 30000
#endif
/* The longest that it may ask for: a day, more than any grace time. */
#define HOLD_PATIENCE_MAX_MS 86400000

/* ---- holding ---- */

static int64_t deadline(const struct pod *pod)
{
	return clock_ms() + (pod->hold.patience ? pod->hold.patience : HOLD_PATIENCE_MS);
}

bool hold_exit(struct pod *pod, struct task *task, int wait_status)
{
	/* without its shim a task was given up by Slurm: nobody is left for whom it could be brought back */
	bool holds = pod->hold.exits && wait_status != 0 && !task->abandoned;

	if (holds) {
		task->exit_held = true;
		task->held_status = wait_status;
		task->exit_deadline = deadline(pod);
	}
	return holds;
}

static void post_held(struct pod *pod, const struct task *task, int number)
{
	struct message note;

	message_start(&note, "HELD");
	message_add(&note, "index", "%u", task->index);
	message_add(&note, "n", "%d", number);
	pod_post(pod, &note);
}

bool hold_signal(struct pod *pod, struct task *task, int number)
{
	signal_mask bit = signal_bit(number);
	/* a coordinator that reads nothing has nothing to say either */
	bool holds = (pod->hold.signals & bit) && !task->ended && pod->coordinator.waiting < POD_NOTES_MAX;

	/* the same one again, while it is held, counts once, as a pending signal does */
	if (holds && !(task->held & bit)) {
		task->held |= bit;
		task->signal_deadlines[number - 1] = deadline(pod);
		post_held(pod, task, number);
	}
	return holds;
}

void hold_forget_exits(struct pod *pod)
{
	for (size_t i = 0; i < pod->task_count; i++)
		pod->tasks[i].exit_held = false;
}

/* ---- passing ---- */

static void pass_exit(struct pod *pod, struct task *task)
{
	if (task->exit_held) {
		task->exit_held = false;
		task_finish(pod, task, task->held_status);
	}
}

static void pass_signal(struct pod *pod, struct task *task, int number)
{
	if (task->held & signal_bit(number)) {
		task->held &= ~signal_bit(number);
		task_signal(pod, task, number);
	}
}

/* n is 0 for an exit. The coordinator has not asked for it, so it is told. */
static void post_passed(struct pod *pod, const struct task *task, int number)
{
	struct message note;

	message_start(&note, "PASSED");
	message_add(&note, "index", "%u", task->index);
	if (number)
		message_add(&note, "n", "%d", number);
	pod_post(pod, &note);
}

static void pass_what_is_due(struct pod *pod, struct task *task, int64_t now)
{
	if (task->exit_held && task->exit_deadline <= now) {
		post_passed(pod, task, 0);
		pass_exit(pod, task);
	}
	for (int number = 1; task->held && number <= SIGNAL_MAX; number++) {
		if ((task->held & signal_bit(number)) && task->signal_deadlines[number - 1] <= now) {
			post_passed(pod, task, number);
			pass_signal(pod, task, number);
		}
	}
}

void hold_pass_due(struct pod *pod)
{
	int64_t now = clock_ms();

	for (size_t i = 0; i < pod->task_count; i++)
		pass_what_is_due(pod, &pod->tasks[i], now);
}

void hold_give_up(struct pod *pod, struct task *task)
{
	if (task->exit_held) {
		post_passed(pod, task, 0);
		pass_exit(pod, task);
	}
}

void hold_set(struct pod *pod, bool exits, signal_mask signals)
{
	pod->hold.exits = exits;
	pod->hold.signals = signals;
	for (size_t i = 0; i < pod->task_count; i++) {
		struct task *task = &pod->tasks[i];
		signal_mask passed = task->held & ~signals;

		if (!exits)
			pass_exit(pod, task);
		for (int number = 1; number <= SIGNAL_MAX; number++) {
			if (passed & signal_bit(number))
				pass_signal(pod, task, number);
		}
	}
}

int hold_patience(const struct pod *pod)
{
	int64_t first = INT64_MAX;

	for (size_t i = 0; i < pod->task_count; i++) {
		const struct task *task = &pod->tasks[i];

		if (task->exit_held && task->exit_deadline < first)
			first = task->exit_deadline;
		for (int number = 1; task->held && number <= SIGNAL_MAX; number++) {
			if ((task->held & signal_bit(number)) && task->signal_deadlines[number - 1] < first)
				first = task->signal_deadlines[number - 1];
		}
	}
	return first == INT64_MAX ? -1 : clock_ms_until(first);
}

/* ---- the coordinator's messages ---- */

/* From now on, and for what is held. */
static void set_patience(struct pod *pod, int64_t patience)
{
	pod->hold.patience = patience;
	for (size_t i = 0; i < pod->task_count && patience; i++) {
		pod->tasks[i].exit_deadline = deadline(pod);
		for (int number = 1; number <= SIGNAL_MAX; number++)
			pod->tasks[i].signal_deadlines[number - 1] = deadline(pod);
	}
}

int hold_take_policy(struct pod *pod, const struct message *message, struct reason *reason)
{
	const char *exits = message_value(message, "exits");
	bool has_patience = message_value(message, "patience");
	uint64_t signals, patience = 0;

	if (!exits || (strcmp(exits, "yes") && strcmp(exits, "no")))
		return refuse(reason, "HOLD needs exits=, yes or no");
	if (!parse_number(message_value(message, "signals"), 16, SIGNALS_ALL, &signals))
		return refuse(reason, "HOLD needs signals=, a hexadecimal mask");
	if (has_patience && (!message_number(message, "patience", HOLD_PATIENCE_MAX_MS, &patience) || patience == 0))
		return refuse(reason, "HOLD: patience= is not a number of milliseconds from 1 to %d", HOLD_PATIENCE_MAX_MS);
	hold_set(pod, !strcmp(exits, "yes"), signals);
	set_patience(pod, (int64_t)patience);
	return 0;
}

int hold_take_pass(struct pod *pod, const struct message *message, struct reason *reason)
{
	bool has_number = message_value(message, "n");
	struct task *task;
	uint64_t index, number = 0;

	if (!message_number(message, "index", INT32_MAX, &index))
		return refuse(reason, "PASS needs index=");
	if (has_number && (!message_number(message, "n", SIGNAL_MAX, &number) || number == 0))
		return refuse(reason, "PASS: n= is not a signal from 1 to %d", SIGNAL_MAX);
	task = tasks_find(pod, (uint32_t)index);
	if (task && has_number)
		pass_signal(pod, task, (int)number);
	else if (task)
		pass_exit(pod, task);
	return 0;
}
