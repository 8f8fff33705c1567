#include "relay.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "clock.h"
#include "descriptors.h"
#include "signals.h"

#define SAID_PATIENCE_MS 1000

_Static_assert(RELAY_BUFFER_BYTES > HELD_LIMIT && RELAY_BUFFER_BYTES > RELAY_SAID_BYTES, "the buffer takes both");

static void close_one(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static int lift(int *fd)
{
	int lifted = *fd >= 0 ? descriptor_lift(*fd) : -1;

	if (lifted >= 0)
		*fd = lifted;
	return lifted;
}

/* A pipe as large as the original one (as far as the user may), whose writing end behaves like the original's. */
static int open_pipe(struct relay *relay, int original)
{
	int capacity = fcntl(original, F_GETPIPE_SZ), flags = fcntl(original, F_GETFL);
	int ends[2];

	if (capacity < 0 || flags < 0 || pipe2(ends, O_CLOEXEC))
		return -1;
	relay->input = ends[0];
	relay->task_end = ends[1];
	if (fcntl(relay->input, F_GETPIPE_SZ) != capacity)
		fcntl(relay->input, F_SETPIPE_SZ, capacity);
	if (lift(&relay->input) < 0 || lift(&relay->task_end) < 0 || fcntl(relay->input, F_SETFL, O_NONBLOCK) ||
	    fcntl(relay->task_end, F_SETFL, flags & O_NONBLOCK))
		return -1;
	return 0;
}

/*
 * O_NONBLOCK belongs to the open file description, which others may share; so a description of our own is opened. Where that is not
 * possible (the pipe is another user's, no /proc), writing is done in portions that a pipe which poll() calls writable takes at once.
 */
static int open_output(struct relay *relay, int original)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", original);
	relay->output = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
	relay->output_blocks = relay->output < 0;
	if (relay->output < 0)
		relay->output = fcntl(original, F_DUPFD_CLOEXEC, 3);
	return lift(&relay->output);
}

int relay_open(struct relay *relay, int original, struct held *held, struct reason *reason)
{
	*relay = (struct relay)RELAY_CLOSED;
	relay->held = held;
	relay->buffer = malloc(RELAY_BUFFER_BYTES);
	if (!relay->buffer)
		return refuse(reason, "out of memory");
	if (open_pipe(relay, original) || open_output(relay, original) < 0)
		return refuse(reason, "cannot make a pipe for the task's output: %s", strerror(errno));
	return 0;
}

void relay_close(struct relay *relay)
{
	close_one(&relay->input);
	close_one(&relay->task_end);
	close_one(&relay->output);
	free(relay->buffer);
	relay->buffer = NULL;
}

static bool has_more(const struct relay *relay)
{
	return relay->sent < relay->ready;
}

/* The reader is gone: the task shall learn it from its next write, as it would without us. */
static void give_up(struct relay *relay)
{
	close_one(&relay->input);
	close_one(&relay->output);
	relay->sent = relay->ready = relay->said_size = 0;
	held_set(relay->held, "", 0);
}

static bool is_writable(int fd)
{
	struct pollfd wait = {.fd = fd, .events = POLLOUT};

	return poll(&wait, 1, 0) == 1 && (wait.revents & (POLLOUT | POLLERR));
}

/* Writes until everything is passed on or the output takes no more. */
static void pass_on(struct relay *relay)
{
	while (has_more(relay)) {
		size_t size = relay->ready - relay->sent;
		ssize_t written;

		if (relay->output_blocks) {
			size = size < PIPE_BUF ? size : PIPE_BUF;
			if (!is_writable(relay->output))
				break;
		}
		written = write(relay->output, relay->buffer + relay->sent, size);
		if (written >= 0) {
			relay->sent += (size_t)written;
			relay->in_line = relay->buffer[relay->sent - 1] != '\n';
		} else if (errno == EAGAIN) {
			break;
		} else if (errno != EINTR) {
			/* the signal is for this thread alone, so it is taken before one that was sent to the process for the task */
			if (errno == EPIPE)
				signals_discard(SIGPIPE);
			give_up(relay);
		}
	}
}

/* buffer[0..size) goes on up to its last newline, and beyond that in whole pieces; the rest is held. */
static void sort(struct relay *relay, size_t size)
{
	const char *newline = memrchr(relay->buffer, '\n', size);
	size_t lines = newline ? (size_t)(newline - relay->buffer) + 1 : 0;
	size_t rest = (size - lines) % HELD_LIMIT;

	relay->sent = 0;
	relay->ready = size - rest;
	held_set(relay->held, relay->buffer + relay->ready, rest);
}

/* Everything that is held goes on. */
static void release(struct relay *relay)
{
	relay->sent = 0;
	relay->ready = held_size(relay->held);
	memcpy(relay->buffer, relay->held->bytes, relay->ready);
	held_set(relay->held, "", 0);
}

/* One read of at most `most` bytes; nothing may be waiting to be passed on. Returns how many bytes came. */
static size_t take_in(struct relay *relay, size_t most)
{
	size_t held = held_size(relay->held), room = RELAY_BUFFER_BYTES - held;
	ssize_t got = read(relay->input, relay->buffer + held, most < room ? most : room);

	if (got > 0) {
		memcpy(relay->buffer, relay->held->bytes, held);
		sort(relay, held + (size_t)got);
	} else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
		close_one(&relay->input);
		release(relay);
	}
	return got > 0 ? (size_t)got : 0;
}

/* Our own lines, when they are not in the way; nothing else may be waiting to be passed on. */
static void speak(struct relay *relay)
{
	size_t size = 0;

	if (relay->in_line)
		relay->buffer[size++] = '\n';
	memcpy(relay->buffer + size, relay->said, relay->said_size);
	relay->sent = 0;
	relay->ready = size + relay->said_size;
	relay->said_size = 0;
	pass_on(relay);
}

/* What comes after a read and after each write. */
static void settle(struct relay *relay)
{
	pass_on(relay);
	if (!has_more(relay) && relay->said_size &&
	    (!relay->in_line || relay->input < 0 || clock_ms_until(relay->said_deadline) == 0))
		speak(relay);
	if (!has_more(relay) && relay->input < 0 && !relay->speaks)
		close_one(&relay->output);
}

void relay_wait(const struct relay *relay, struct pollfd wait[RELAY_POLLED])
{
	wait[0] = (struct pollfd){.fd = has_more(relay) ? -1 : relay->input, .events = POLLIN};
	/* without any event poll still reports that the reader is gone */
	wait[1] = (struct pollfd){.fd = relay->output, .events = has_more(relay) ? POLLOUT : 0};
}

int relay_patience(const struct relay *relay)
{
	/* while the output is full, its reader decides */
	return relay->said_size && !has_more(relay) ? clock_ms_until(relay->said_deadline) : -1;
}

void relay_serve(struct relay *relay, const struct pollfd wait[RELAY_POLLED])
{
	if (wait[1].revents & (POLLERR | POLLNVAL))
		give_up(relay);
	else if (wait[0].revents)
		take_in(relay, RELAY_BUFFER_BYTES);
	settle(relay);
}

void relay_say(struct relay *relay, const char *line, size_t size)
{
	if (relay->output < 0 || size > sizeof(relay->said) - 1 - relay->said_size)
		return;
	if (!relay->said_size)
		relay->said_deadline = clock_ms() + SAID_PATIENCE_MS;
	memcpy(relay->said + relay->said_size, line, size);
	relay->said_size += size;
	settle(relay);
}

size_t relay_last_bytes(const struct relay *relay)
{
	int size = 0;

	return relay->input >= 0 && !ioctl(relay->input, FIONREAD, &size) ? (size_t)size : 0;
}

bool relay_finish(struct relay *relay, size_t *bytes_left)
{
	pass_on(relay);
	while (!has_more(relay) && *bytes_left && relay->input >= 0) {
		size_t got = take_in(relay, *bytes_left);

		/* less than was there: somebody else reads this pipe too */
		*bytes_left = got ? *bytes_left - got : 0;
		pass_on(relay);
	}
	if (!has_more(relay)) {
		close_one(&relay->input);
		if (relay->output >= 0)
			release(relay);
		settle(relay);
	}
	return has_more(relay);
}
