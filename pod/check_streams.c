/* Tests of what lies between a task's output, or a stand-in's signals, and where they go. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "clock.h"
#include "forward.h"
#include "relays.h"
#include "signals.h"

void check_held(void)
{
	struct reason reason;
	int memfd = -1;
	struct held *held = held_open(&memfd, &reason);
	struct stat status;

	CHECK(held && memfd >= 3 && !fstat(memfd, &status) && status.st_size == 4096);
	held_set(&held[1], "abc", 3);
	CHECK(held_size(&held[0]) == 0 && held_size(&held[1]) == 3);
	held[1].size = HELD_LIMIT - 1;
	CHECK(held_size(&held[1]) == HELD_LIMIT - 1);
	held[1].size = HELD_LIMIT;
	CHECK(held_size(&held[1]) == 0 && held_stated_size(&held[1]) == HELD_LIMIT);
	munmap(held, HELD_SLOTS * HELD_SLOT_BYTES);
	close(memfd);
}

/* 1 and 2 are pipes for as long as this runs: ends[0] and ends[1] their readers, and saved[] what they were. */
static void place_pipes(int ends[2], int saved[2])
{
	for (int i = 0; i < 2; i++) {
		int pair[2];

		CHECK(!pipe2(pair, O_CLOEXEC));
		saved[i] = fcntl(i + 1, F_DUPFD_CLOEXEC, 10);
		CHECK(dup2(pair[1], i + 1) == i + 1);
		close(pair[1]);
		ends[i] = pair[0];
		fcntl(ends[i], F_SETFL, O_NONBLOCK);
	}
}

static void replace_pipes(const int ends[2], const int saved[2])
{
	for (int i = 0; i < 2; i++) {
		dup2(saved[i], i + 1);
		close(saved[i]);
		close(ends[i]);
	}
}

static void serve(struct relays *relays)
{
	struct pollfd wait[RELAYS_POLLED];

	relays_wait(relays, wait);
	poll(wait, RELAYS_POLLED, 0);
	relays_serve(relays, wait);
}

void check_relays(void)
{
	static char big[40000], got[90000];
	struct relays relays;
	struct reason reason;
	int ends[2], saved[2], task[2];
	int64_t begin;
	ssize_t first, rest;
	bool good;

	place_pipes(ends, saved);
	good = !relays_open(&relays, &reason) && relays.count == 2 && relays.of_stdout && relays.of_stderr != relays.of_stdout;
	for (int i = 0; i < 2; i++)
		task[i] = dup(relays_task_end(&relays, i + 1));
	relays_handed_over(&relays);
	relays_begin(&relays);
	good = good && relays_task_end(&relays, 0) == 0;
	good = good && write(task[0], "a\nbc", 4) == 4;
	serve(&relays);
	good = good && read(ends[0], got, sizeof(got)) == 2 && held_size(&relays.held[0]) == 2 && !memcmp(relays.held[0].bytes, "bc", 2);
	/* our line first, then what is left, a reader that takes nothing after the first 64 KiB */
	relays_say(&relays, "said");
	memset(big, 'x', sizeof(big));
	good = good && write(task[1], big, sizeof(big)) == (ssize_t)sizeof(big);
	serve(&relays);
	good = good && write(task[1], big, sizeof(big)) == (ssize_t)sizeof(big);
	relays_say(&relays, "last words");
	begin = clock_ms();
	relays_finish(&relays, 50, false);
	good = good && clock_ms() - begin >= 50 && clock_ms() - begin < 5000;
	/* the one that is read is complete */
	good = good && read(ends[0], got, sizeof(got)) == 2 && !memcmp(got, "bc", 2);
	first = read(ends[1], got, sizeof(got));
	/* and what the other takes now comes after all */
	relays_finish(&relays, 50, true);
	rest = read(ends[1], got + first, sizeof(got) - (size_t)first);
	good = good && first > 60000 && first + rest == 5 + 2 * (ssize_t)sizeof(big) + 12 && !memcmp(got, "said\nxx", 7);
	good = good && !memcmp(got + first + rest - 13, "x\nlast words\n", 13) && !memchr(got + 5, '\n', 2 * sizeof(big));
	relays_close(&relays);
	close(task[0]);
	close(task[1]);
	replace_pipes(ends, saved);
	CHECK(good);
}

/* The reader goes between poll and write: no signal is left for signals_read to take for one that is meant for the task. */
void check_relay_without_reader(void)
{
	struct relay relay;
	struct reason reason;
	struct held held = {.size = 2, .bytes = "ab"};
	size_t left = 0;
	int ends[2];

	CHECK(!pipe2(ends, O_CLOEXEC));
	CHECK(!relay_open(&relay, ends[1], &held, &reason) && !relay.output_blocks);
	close(ends[0]);
	CHECK(!relay_finish(&relay, &left));
	CHECK(!signals_pending(SIGPIPE));
	CHECK(relay.output == -1 && relay.input == -1 && held_size(&held) == 0);
	relay_say(&relay, "x\n", 2);
	CHECK(relay.said_size == 0 && !relay_finish(&relay, &left));
	relay_close(&relay);
	close(ends[1]);
}

static int forward_once(struct forward *forward)
{
	struct pollfd wait[FORWARD_POLLED];

	forward_wait(forward, wait);
	poll(wait, FORWARD_POLLED, 0);
	return forward_take(forward, wait);
}

/* In main, SIGPIPE is blocked; SIGUSR1 is here. A full pipe leaves it with the kernel, and one without a reader does not. */
void check_forward(void)
{
	signal_mask before = signals_set_mask(signal_bit(SIGPIPE) | signal_bit(SIGUSR1));
	struct forward forward;
	char bytes[4096] = "";
	int ends[2];

	CHECK(!pipe(ends) && fcntl(ends[1], F_SETPIPE_SZ, 4096) == 4096 && !forward_open(&forward, ends[1]));
	CHECK(write(ends[1], bytes, sizeof(bytes)) == sizeof(bytes));
	CHECK(!kill(getpid(), SIGUSR1));
	for (int i = 0; i < 3; i++)
		CHECK(forward_once(&forward) == 0 && forward.congested && signals_pending(SIGUSR1));
	CHECK(read(ends[0], bytes, sizeof(bytes)) == sizeof(bytes));
	CHECK(forward_once(&forward) == 0 && !forward.congested);
	CHECK(forward_once(&forward) == SIGUSR1 && !signals_pending(SIGUSR1));
	CHECK(!kill(getpid(), SIGUSR1));
	CHECK(write(ends[1], bytes, sizeof(bytes)) == sizeof(bytes) && forward_once(&forward) == 0 && forward.congested);
	close(ends[0]);
	CHECK(forward_once(&forward) == 0 && forward_once(&forward) == SIGUSR1);
	close(ends[1]);
	close(forward.signals);
	signals_set_mask(before);
}
