#include "relays.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "line.h"

/* A pipe of the task's to write to. In packet mode (O_DIRECT) a pipe carries no lines. */
static bool is_output_pipe(int number, struct stat *status)
{
	int flags = fcntl(number, F_GETFL);

	return flags >= 0 && (flags & (O_ACCMODE | O_DIRECT)) == O_WRONLY && !fstat(number, status) && S_ISFIFO(status->st_mode);
}

static struct relay *add(struct relays *relays, int number, struct reason *reason)
{
	struct relay *relay = &relays->relay[relays->count];

	relays->numbers[relays->count++] = number;
	return relay_open(relay, number, &relays->held[number - 1], reason) ? NULL : relay;
}

int relays_open(struct relays *relays, struct reason *reason)
{
	struct stat out, err;
	bool has_out = is_output_pipe(STDOUT_FILENO, &out), has_err = is_output_pipe(STDERR_FILENO, &err);

	*relays = (struct relays)RELAYS_NONE;
	relays->held = held_open(&relays->memfd, reason);
	if (!relays->held)
		return -1;
	if (has_out && !(relays->of_stdout = add(relays, STDOUT_FILENO, reason)))
		return -1;
	if (has_out && has_err && out.st_dev == err.st_dev && out.st_ino == err.st_ino)
		relays->of_stderr = relays->of_stdout;
	else if (has_err && !(relays->of_stderr = add(relays, STDERR_FILENO, reason)))
		return -1;
	if (relays->of_stderr)
		relays->of_stderr->speaks = true;
	return 0;
}

void relays_close(struct relays *relays)
{
	for (size_t i = 0; i < relays->count; i++)
		relay_close(&relays->relay[i]);
	if (relays->held)
		munmap(relays->held, HELD_SLOTS * HELD_SLOT_BYTES);
	if (relays->memfd >= 0)
		close(relays->memfd);
	*relays = (struct relays)RELAYS_NONE;
}

int relays_task_end(const struct relays *relays, int number)
{
	const struct relay *relay = number == STDOUT_FILENO ? relays->of_stdout : number == STDERR_FILENO ? relays->of_stderr : NULL;

	return relay ? relay->task_end : number;
}

void relays_handed_over(struct relays *relays)
{
	for (size_t i = 0; i < relays->count; i++) {
		close(relays->relay[i].task_end);
		relays->relay[i].task_end = -1;
	}
	close(relays->memfd);
	relays->memfd = -1;
}

void relays_begin(struct relays *relays)
{
	for (size_t i = 0; i < relays->count; i++) {
		struct held *held = relays->relay[i].held;
		unsigned int size = held_stated_size(held);

		if (size >= HELD_LIMIT) {
			held_set(held, "", 0);
			relays_say(relays, "slurmckpt: %u held bytes of descriptor %d are ignored, at most %d are possible", size,
				   relays->numbers[i], HELD_LIMIT - 1);
		}
	}
}

void relays_descriptors(const struct relays *relays, int descriptors[RELAYS_POLLED])
{
	for (size_t i = 0; i < RELAYS_MAX; i++) {
		descriptors[RELAY_POLLED * i] = i < relays->count ? relays->relay[i].input : -1;
		descriptors[RELAY_POLLED * i + 1] = i < relays->count ? relays->relay[i].output : -1;
	}
}

void relays_wait(const struct relays *relays, struct pollfd wait[RELAYS_POLLED])
{
	for (size_t i = 0; i < RELAYS_POLLED; i++)
		wait[i] = (struct pollfd){.fd = -1};
	for (size_t i = 0; i < relays->count; i++)
		relay_wait(&relays->relay[i], wait + RELAY_POLLED * i);
}

int relays_patience(const struct relays *relays)
{
	int shortest = -1;

	for (size_t i = 0; i < relays->count; i++) {
		int patience = relay_patience(&relays->relay[i]);

		if (patience >= 0 && (shortest < 0 || patience < shortest))
			shortest = patience;
	}
	return shortest;
}

void relays_serve(struct relays *relays, const struct pollfd wait[RELAYS_POLLED])
{
	for (size_t i = 0; i < relays->count; i++)
		relay_serve(&relays->relay[i], wait + RELAY_POLLED * i);
}

void relays_say(struct relays *relays, const char *format, ...)
{
	char text[LINE_MAX_BYTES], line[LINE_MAX_BYTES];
	va_list values;

	va_start(values, format);
	vsnprintf(text, sizeof(text), format, values);
	va_end(values);
	if (relays->of_stderr)
		relay_say(relays->of_stderr, line, make_line(line, text));
	else
		print_line(STDERR_FILENO, text);
}

void relays_finish(struct relays *relays, int patience_ms, bool in_all)
{
	size_t bytes_left[RELAYS_MAX] = {0};
	int64_t deadline = clock_ms() + patience_ms;
	bool going = true;

	for (size_t i = 0; i < relays->count; i++)
		bytes_left[i] = relay_last_bytes(&relays->relay[i]);
	while (going) {
		struct pollfd wait[RELAYS_MAX];

		going = false;
		for (size_t i = 0; i < relays->count; i++) {
			bool more = relay_finish(&relays->relay[i], &bytes_left[i]);

			wait[i] = (struct pollfd){.fd = more ? relays->relay[i].output : -1, .events = POLLOUT};
			going = going || more;
		}
		/* a return is progress: the reader took something, or is gone */
		going = going && poll(wait, relays->count, clock_ms_until(deadline)) > 0;
		if (!in_all)
			deadline = clock_ms() + patience_ms;
	}
}
