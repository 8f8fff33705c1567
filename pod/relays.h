/* The relays of one task: its standard output and standard error, where these are pipes. */
#ifndef SLURMCKPT_RELAYS_H
#define SLURMCKPT_RELAYS_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>

#include "held.h"
#include "reason.h"
#include "relay.h"

#define RELAYS_MAX HELD_SLOTS
#define RELAYS_POLLED (RELAYS_MAX * RELAY_POLLED)

struct relays {
	int memfd;			/* the held output */
	struct held *held;
	struct relay relay[RELAYS_MAX];
	int numbers[RELAYS_MAX];	/* of the task's descriptor that each one stands for; for two that are one pipe, the lower */
	size_t count;
	struct relay *of_stdout;	/* NULL: not relayed. Both are the same relay when both are one pipe. */
	struct relay *of_stderr;
};

#define RELAYS_NONE {.memfd = -1}

/* Looks at 1 and 2 and prepares what the task gets in their place. Or -1 with the reason. In any case, relays_close afterwards. */
int relays_open(struct relays *relays, struct reason *reason);
void relays_close(struct relays *relays);

/* What the task gets as this descriptor. */
int relays_task_end(const struct relays *relays, int number);

/* The task has its ends: closes ours, so that we see when the task has closed them all, and the memfd. */
void relays_handed_over(struct relays *relays);

/* At RUN: takes what the memory holds; what it cannot hold is refused with a line. */
void relays_begin(struct relays *relays);

/* The descriptors that must stay open from RUN on, RELAYS_POLLED of them; -1 where there is none. */
void relays_descriptors(const struct relays *relays, int descriptors[RELAYS_POLLED]);

/* As in relay.h. All RELAYS_POLLED entries are filled. */
void relays_wait(const struct relays *relays, struct pollfd wait[RELAYS_POLLED]);
int relays_patience(const struct relays *relays);
void relays_serve(struct relays *relays, const struct pollfd wait[RELAYS_POLLED]);

/* A line for the user on the task's standard error. All signals must be blocked. */
void relays_say(struct relays *relays, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Passes on what is in the pipes now, what is held, and our own lines. Gives up when the readers take nothing for patience_ms; with
 * `in_all`, when it has lasted that long in all.
 */
void relays_finish(struct relays *relays, int patience_ms, bool in_all);

#endif
