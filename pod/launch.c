#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "descriptors.h"
#include "payload_apply.h"
#include "signals.h"

/* LAUNCH's descriptors */
enum { LAUNCH_SIGNALS, LAUNCH_STATUS, LAUNCH_PAYLOAD, LAUNCH_FDS };

static bool is_pipe(int fd, int mode)
{
	struct stat status;

	return !fstat(fd, &status) && S_ISFIFO(status.st_mode) && (fcntl(fd, F_GETFL) & O_ACCMODE) == mode;
}

int launch_receive(int control, struct message *message, struct reason *reason)
{
	enum message_result result = message_receive(control, message, true, 0);

	if (result == MESSAGE_END)
		return refuse(reason, "the coordinator is gone before LAUNCH");
	if (result == MESSAGE_FAILED)
		return refuse(reason, "cannot receive LAUNCH: %s", errno == EBADMSG ? "malformed message" : strerror(errno));
	if (!message_is(message, "LAUNCH"))
		return refuse(reason, "LAUNCH was expected, not %.60s", message->bytes);
	if (message->fd_count < LAUNCH_FDS || !is_pipe(message->fds[LAUNCH_SIGNALS], O_RDONLY) ||
	    !is_pipe(message->fds[LAUNCH_STATUS], O_WRONLY))
		return refuse(reason, "LAUNCH needs a signal pipe, a status pipe, a payload and its descriptors");
	return 0;
}

/* ---- the child ---- */

static bool uses(const struct payload *payload, int number)
{
	bool found = false;

	for (size_t i = 0; i < payload->fd_count && !found; i++)
		found = payload->fds[i] == number;
	return found;
}

/* Places the payload's descriptors and beside them the one for a failure, which closes by itself when srun is executed. */
static int place_descriptors(const struct payload *payload, const int *fds, int *report, struct reason *reason)
{
	size_t count = payload->fd_count;
	int sources[PAYLOAD_MAX_FDS + 1], targets[PAYLOAD_MAX_FDS + 1];
	int number = 3, result;

	while (uses(payload, number))
		number++;
	memcpy(sources, fds, count * sizeof(*fds));
	memcpy(targets, payload->fds, count * sizeof(*fds));
	sources[count] = *report;
	targets[count] = number;
	result = descriptors_place(sources, targets, count + 1, reason);
	*report = result ? sources[count] : number;
	fcntl(*report, F_SETFD, FD_CLOEXEC);
	return result;
}

_Noreturn static void become_srun(const char *program, const struct message *message, pid_t launcher, int report)
{
	const int *fds = message->fds + LAUNCH_FDS;
	size_t fd_count = message->fd_count - LAUNCH_FDS;
	struct payload payload;
	struct reason reason;

	/* not the launcher's: that group is orphaned, and the kernel would not stop srun in it */
	setpgid(0, 0);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != launcher) {
		refuse(&reason, "the launcher is gone");
		goto fail;
	}
	if (payload_read_with(message->fds[LAUNCH_PAYLOAD], fd_count, &payload, &reason))
		goto fail;
	if (place_descriptors(&payload, fds, &report, &reason))
		goto fail;
	if (chdir(payload.cwd)) {
		refuse(&reason, "cannot enter %.200s: %s", payload.cwd, strerror(errno));
		goto fail;
	}
	payload_apply(&payload);
	signals_set_mask(payload.blocked);
	execve(program, payload.argv, payload.envp);
	refuse(&reason, "cannot execute %.200s: %s", program, strerror(errno));
	signals_set_mask(SIGNALS_ALL);
fail:
	/* below PIPE_BUF: all or nothing; a launcher that is gone needs no reason */
	_exit(write(report, reason.text, strlen(reason.text)) < 0 ? 126 : 127);
}

/* ---- the launcher ---- */

/* What the child had to say before it became srun; 0 when it has become it. */
static int read_report(int fd, struct reason *reason)
{
	char text[sizeof(reason->text)];
	ssize_t got;

	do {
		got = read(fd, text, sizeof(text) - 1);
	} while (got < 0 && errno == EINTR);
	if (got < 0)
		return refuse(reason, "cannot hear of srun's start: %s", strerror(errno));
	text[got] = '\0';
	return got == 0 ? 0 : refuse(reason, "%s", text);
}

/* Keeps the coordinator's connection and the pipes. */
static int let_go(struct launch *launch, struct reason *reason)
{
	const int keep[] = {0, 1, 2, launch->control, launch->signals, launch->status, launch->children};

	if (descriptors_silence(true, reason))
		return -1;
	if (descriptors_close_others(keep, sizeof(keep) / sizeof(*keep)))
		return refuse(reason, "cannot close descriptors: %s", strerror(errno));
	return 0;
}

static int lift(int *fd, struct reason *reason)
{
	int lifted = descriptor_lift(*fd);

	if (lifted < 0)
		return refuse(reason, "cannot move a descriptor: %s", strerror(errno));
	*fd = lifted;
	return 0;
}

int launch_start(struct launch *launch, const char *program, struct message *message, struct reason *reason)
{
	pid_t launcher = getpid();
	int report[2] = {-1, -1}, result = -1;

	launch->signals = message_take_fd(message, LAUNCH_SIGNALS);
	launch->status = message_take_fd(message, LAUNCH_STATUS);
	launch->children = signals_open(signal_bit(SIGCHLD));
	if (launch->children < 0 || pipe2(report, O_CLOEXEC)) {
		refuse(reason, "cannot prepare the launch: %s", strerror(errno));
		goto out;
	}
	if (lift(&launch->signals, reason) || lift(&launch->status, reason) || lift(&launch->children, reason))
		goto out;
	launch->srun = fork();
	if (launch->srun == 0)
		become_srun(program, message, launcher, report[1]);
	close(report[1]);
	report[1] = -1;
	if (launch->srun < 0) {
		refuse(reason, "cannot fork: %s", strerror(errno));
		goto out;
	}
	message_free(message);
	result = read_report(report[0], reason) || let_go(launch, reason) ? -1 : 0;
out:
	return result;
}

static void pass_signal(const struct launch *launch)
{
	int32_t number;

	memcpy(&number, launch->word, sizeof(number));
	if (number > 0 && number <= SIGNAL_MAX)
		kill(launch->srun, number);
}

/* The pipe's writer is the user's: anything may come, in any piece. */
static void take_signals(struct launch *launch)
{
	ssize_t got = read(launch->signals, launch->word + launch->word_size, sizeof(launch->word) - launch->word_size);

	if (got > 0) {
		launch->word_size += (size_t)got;
		if (launch->word_size == sizeof(launch->word)) {
			launch->word_size = 0;
			pass_signal(launch);
		}
	} else if (got == 0 || errno != EINTR) {
		/* the stand-in is gone, and killing it is meant for srun */
		close(launch->signals);
		launch->signals = -1;
		kill(launch->srun, SIGKILL);
	}
}

static int wait_for_srun(struct launch *launch)
{
	int wait_status = 0;
	pid_t ended;

	while ((ended = waitpid(launch->srun, &wait_status, WNOHANG)) == 0) {
		struct pollfd wait[] = {
			{.fd = launch->children, .events = POLLIN},
			{.fd = launch->signals, .events = POLLIN},
		};

		if (poll(wait, 2, -1) < 0)
			continue;
		if (wait[0].revents)
			signals_read(launch->children);
		if (wait[1].revents)
			take_signals(launch);
	}
	return ended == launch->srun ? wait_status : SIGKILL;
}

static void post(const struct launch *launch, const char *verb, const char *key, int value)
{
	struct message note;

	message_start(&note, verb);
	message_add(&note, key, "%d", value);
	/* a coordinator that is gone, or does not read, finds out otherwise */
	message_send(launch->control, &note, MSG_DONTWAIT);
	message_free(&note);
}

void launch_serve(struct launch *launch)
{
	int32_t wait_status;

	post(launch, "STARTED", "pid", launch->srun);
	wait_status = wait_for_srun(launch);
	/* into an empty pipe, so at once; when the stand-in is gone, nobody needs it */
	if (write(launch->status, &wait_status, sizeof(wait_status)) < 0)
		errno = 0;
	post(launch, "EXITED", "status", wait_status);
}
