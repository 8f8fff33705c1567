/*
 * One stream of a task's output, passed on in whole lines. slurmstepd keeps the beginning of a line in its own memory until the line is
 * complete, where no checkpoint finds it; so the task gets a pipe of ours, and the beginning of a line is held here, in memory shared with
 * the coordinator, while everything before it goes on to the original pipe.
 *
 * Like slurmstepd, a relay passes on the beginning of a line as well when it grows to HELD_LIMIT, in pieces of that size: slurmstepd never
 * has to keep anything.
 */
#ifndef SLURMCKPT_RELAY_H
#define SLURMCKPT_RELAY_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "held.h"
#include "reason.h"

#define RELAY_BUFFER_BYTES (64 * 1024)
#define RELAY_SAID_BYTES (16 * 1024)

struct relay {
	int input;		/* where the task's output is read; -1 after its end */
	int task_end;		/* the writing end of the same pipe, until it is handed over */
	int output;		/* the original pipe; -1 when there is nothing more to pass on or nobody to read it */
	bool output_blocks;	/* it could not be opened for writing without waiting */
	bool speaks;		/* carries our own lines too, so that the output stays open until the end */
	bool in_line;		/* what was passed on last does not end with a newline */
	struct held *held;
	char *buffer;		/* buffer[sent..ready) is to be passed on now, before anything else is read */
	size_t sent, ready;
	char said[RELAY_SAID_BYTES];	/* our own lines that wait for the end of the task's line */
	size_t said_size;
	int64_t said_deadline;
};

#define RELAY_CLOSED {.input = -1, .task_end = -1, .output = -1}

/* A relay to the pipe `original`, the task's end still to be handed over; or -1 with the reason. In any case, relay_close afterwards. */
int relay_open(struct relay *relay, int original, struct held *held, struct reason *reason);
void relay_close(struct relay *relay);

/*
 * What to poll for: the input, and the output. While there is something to be passed on, nothing is read and POLLOUT is asked for; so
 * whoever sees this process sleep without POLLOUT knows that it holds nothing of the stream but `held`.
 */
#define RELAY_POLLED 2
void relay_wait(const struct relay *relay, struct pollfd wait[RELAY_POLLED]);

/* How long poll may wait for the sake of this relay: milliseconds, -1 for ever. */
int relay_patience(const struct relay *relay);

/* After poll: reads at most once, and writes what the output takes. Never waits. */
void relay_serve(struct relay *relay, const struct pollfd wait[RELAY_POLLED]);

/*
 * Passes on our own line (with its newline): between two lines of the task, or, when the task's line does not end within a second or will
 * not end any more, on a line of its own. Lost when RELAY_SAID_BYTES wait already.
 */
void relay_say(struct relay *relay, const char *line, size_t size);

/*
 * The end, step by step: relay_last_bytes states how many bytes the pipe has now, and each relay_finish passes on as many of them, then of
 * the held rest and of our own lines, as the output takes. Returns whether something is left. What comes into the pipe later, from
 * processes that the task left behind, is not waited for.
 */
size_t relay_last_bytes(const struct relay *relay);
bool relay_finish(struct relay *relay, size_t *bytes_left);

#endif
