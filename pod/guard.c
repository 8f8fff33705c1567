#include "guard.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "signals.h"

/* The coordinator writes every 2 s; its event loop may be busy for a while. */
#define PATIENCE_MS 20000
/* After a pause of the whole machine everybody is late: whoever is well writes within this. */
#define SECOND_CHANCE_MS 3000
/* CRIU, when its connection has ended: it looks up at its next question, and then lets all processes go. */
#define UNDO_MS 20000
/* After SIGTERM: the coordinator has waited before. */
#define LAST_UNDO_MS 3000

struct watch {
	const struct guard *guard;
	pid_t program;
	bool beating;		/* the coordinator is expected to write */
	bool warned;		/* it has missed its time once */
	int64_t deadline;	/* for its next word, or for the program's end; INT64_MAX: none */
};

static void begin_undo(struct watch *watch, int64_t patience)
{
	watch->beating = false;
	watch->deadline = clock_ms() + patience;
	shutdown(watch->guard->channel, SHUT_RDWR);
	/* whoever has stopped it: it must go on to undo anything */
	kill(watch->program, SIGCONT);
}

static void hear_beat(struct watch *watch)
{
	char bytes[64];
	ssize_t got = read(watch->guard->beat, bytes, sizeof(bytes));

	if (got > 0) {
		watch->warned = false;
		watch->deadline = clock_ms() + PATIENCE_MS;
	} else if (got == 0 || errno != EINTR) {
		begin_undo(watch, UNDO_MS);
	}
}

static void deadline_passed(struct watch *watch)
{
	if (watch->beating && !watch->warned) {
		watch->warned = true;
		watch->deadline = clock_ms() + SECOND_CHANCE_MS;
	} else if (watch->beating && watch->guard->pod_init > 0) {
		/* the program dies with it, and does not get to let anything run */
		kill(watch->guard->pod_init, SIGKILL);
		watch->beating = false;
		watch->deadline = clock_ms() + UNDO_MS;
	} else if (watch->beating) {
		begin_undo(watch, UNDO_MS);
	} else {
		kill(watch->program, SIGKILL);
		watch->deadline = INT64_MAX;
	}
}

static void take_term(struct watch *watch)
{
	if (watch->guard->channel < 0)
		kill(watch->program, SIGTERM);
	else
		begin_undo(watch, LAST_UNDO_MS);
}

int guard_wait(pid_t program, const struct guard *guard)
{
	bool guarded = guard->channel >= 0;
	struct watch watch = {
		.guard = guard,
		.program = program,
		.beating = guarded,
		.deadline = guarded ? clock_ms() + PATIENCE_MS : INT64_MAX,
	};
	int signals = signals_open(signal_bit(SIGTERM) | signal_bit(SIGCHLD));
	int wait_status = 0;

	while (waitpid(program, &wait_status, WNOHANG) == 0) {
		struct pollfd entries[] = {
			{.fd = signals, .events = POLLIN},
			{.fd = watch.beating ? guard->beat : -1, .events = POLLIN},
		};
		int timeout = watch.deadline == INT64_MAX ? -1 : clock_ms_until(watch.deadline);

		/* without a signalfd (no descriptor left) look again now and then */
		if (signals < 0)
			timeout = timeout < 0 || timeout > 100 ? 100 : timeout;
		poll(entries, 2, timeout);
		if (entries[0].revents && signals_read(signals) == SIGTERM)
			take_term(&watch);
		if (entries[1].revents)
			hear_beat(&watch);
		if (clock_ms() >= watch.deadline)
			deadline_passed(&watch);
	}
	if (signals >= 0)
		close(signals);
	return wait_status;
}
