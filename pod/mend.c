#include "mend.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "number.h"
#include "signals.h"

/* CRIU's code, when its socket ends, restores the process within microseconds of CPU time. */
#define PATIENCE_MS 5000
#define INTERVAL_MS 20
/* /proc/PID/task or so */
#define PROC_PATH_MAX 64

/*
 * While CRIU's code is in a thread, all signals but this are blocked there (parasite_run() in CRIU's compel/src/lib/infect.c; SIGKILL and
 * SIGSTOP cannot be). Nothing else blocks exactly these: a program that blocks all leaves out those that its libc needs, or none.
 */
#define PARASITE_MASK (SIGNALS_ALL & ~(signal_bit(SIGTRAP) | signal_bit(SIGKILL) | signal_bit(SIGSTOP)))

/* Calls visit for each entry of a directory whose name is a number. What vanishes meanwhile is left out. */
static void each_number(const char *path, void (*visit)(const char *path, int number, void *context), void *context)
{
	DIR *directory = opendir(path);
	struct dirent *entry;
	uint64_t number;

	while (directory && (entry = readdir(directory))) {
		if (parse_number(entry->d_name, 10, INT_MAX, &number))
			visit(path, (int)number, context);
	}
	if (directory)
		closedir(directory);
}

/* ---- sockets ---- */

static void end_repair(int fd)
{
	int value = 0, off = 0, on = 1;
	socklen_t size = sizeof(value);

	if (!getsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &value, &size) && value) {
		setsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &off, sizeof(off));
		/* repair mode has taken it away, and whether it was set is not known: most servers set it, and it does no harm */
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	}
}

static void mend_descriptor(const char *path, int number, void *context)
{
	int pidfd = *(int *)context;
	char name[PROC_PATH_MAX + 16], target[16];
	int fd;

	snprintf(name, sizeof(name), "%s/%d", path, number);
	if (readlink(name, target, sizeof(target)) < 8 || strncmp(target, "socket:[", 8))
		return;
	fd = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);
	if (fd >= 0) {
		end_repair(fd);
		close(fd);
	}
}

static void mend_process(const char *path, int pid, void *context)
{
	char descriptors[PROC_PATH_MAX];
	int pidfd;

	(void)context;
	pidfd = pid == 1 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0)
		return;
	snprintf(descriptors, sizeof(descriptors), "%s/%d/fd", path, pid);
	each_number(descriptors, mend_descriptor, &pidfd);
	close(pidfd);
}

/* ---- threads ---- */

static void look_at_thread(const char *path, int tid, void *context)
{
	bool *sane = context;
	char name[PROC_PATH_MAX + 32], line[256];
	FILE *status;

	snprintf(name, sizeof(name), "%s/%d/status", path, tid);
	status = fopen(name, "re");
	while (status && fgets(line, sizeof(line), status)) {
		if (!strncmp(line, "SigBlk:\t", 8) && strtoull(line + 8, NULL, 16) == PARASITE_MASK)
			*sane = false;
	}
	if (status)
		fclose(status);
}

static void look_at_process(const char *path, int pid, void *context)
{
	char threads[PROC_PATH_MAX];

	snprintf(threads, sizeof(threads), "%s/%d/task", path, pid);
	each_number(threads, look_at_thread, context);
}

bool mend_pod(void)
{
	const struct timespec interval = {.tv_nsec = INTERVAL_MS * 1000000L};
	int64_t deadline = clock_ms() + PATIENCE_MS;
	bool sane;

	each_number("/proc", mend_process, NULL);
	for (;;) {
		sane = true;
		each_number("/proc", look_at_process, &sane);
		if (sane || clock_ms() >= deadline)
			break;
		nanosleep(&interval, NULL);
	}
	return sane;
}
