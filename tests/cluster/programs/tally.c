/*
 * tally NAME [COMMAND]: notes every signal that it and a child of its own get, one line each, in NAME.tally and NAME.child.tally, until the file
 * `stop` exists. NAME.ready says that both watch. A NAME that ends with a dot gets SLURM_PROCID behind it. COMMAND runs beside it in a shell.
 */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const int WATCHED[] = {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM, SIGCONT, SIGTSTP, SIGALRM, SIGURG, SIGWINCH};
static const char *const NAMES[] = {"HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "CONT", "TSTP", "ALRM", "URG", "WINCH"};
enum { COUNT = sizeof(WATCHED) / sizeof(*WATCHED) };

static int notes = -1;

static void note(int number)
{
	for (int i = 0; i < COUNT; i++) {
		char line[16];

		if (WATCHED[i] == number && write(notes, line, (size_t)snprintf(line, sizeof(line), "%s\n", NAMES[i])) < 0)
			_exit(3);
	}
}

static void watch(const char *name)
{
	struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s.tally", name);
	notes = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
	/* one at a time, so that what is counted is deliveries */
	sigfillset(&action.sa_mask);
	for (int i = 0; i < COUNT; i++)
		sigaction(WATCHED[i], &action, NULL);
}

static void await_stop(void)
{
	const struct timespec moment = {.tv_nsec = 20000000};

	while (access("stop", F_OK))
		nanosleep(&moment, NULL);
}

int main(int argc, char **argv)
{
	char name[256], child_name[300], ready[300];
	const char *rank = getenv("SLURM_PROCID");
	int pipe_ends[2];
	char byte;

	if (argc < 2 || pipe(pipe_ends))
		return 2;
	snprintf(name, sizeof(name), "%s%s", argv[1], argv[1][strlen(argv[1]) - 1] == '.' && rank ? rank : "");
	snprintf(child_name, sizeof(child_name), "%s.child", name);
	snprintf(ready, sizeof(ready), "%s.ready", name);
	if (fork() == 0) {
		watch(child_name);
		if (write(pipe_ends[1], "x", 1) != 1)
			return 3;
		await_stop();
		return 0;
	}
	watch(name);
	if (argc > 2 && fork() == 0) {
		for (int i = 0; i < COUNT; i++)
			signal(WATCHED[i], SIG_DFL);
		execl("/bin/sh", "sh", "-c", argv[2], (char *)NULL);
		return 127;
	}
	if (read(pipe_ends[0], &byte, 1) != 1)
		return 3;
	close(open(ready, O_WRONLY | O_CREAT, 0644));
	await_stop();
	while (wait(NULL) > 0)
		;
	return 0;
}
