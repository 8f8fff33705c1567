#include "sane.h"

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

struct look {
	int pidfd;		/* of the process whose descriptors are looked at */
	bool sane;
};

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

static bool is_in_repair(int pidfd, int number)
{
	int fd = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);
	int value = 0;
	socklen_t size = sizeof(value);
	bool found = fd >= 0 && !getsockopt(fd, IPPROTO_TCP, TCP_REPAIR, &value, &size) && value;

	if (fd >= 0)
		close(fd);
	return found;
}

static void look_at_descriptor(const char *path, int number, void *context)
{
	struct look *look = context;
	char name[PROC_PATH_MAX + 16], target[16];

	snprintf(name, sizeof(name), "%s/%d", path, number);
	if (readlink(name, target, sizeof(target)) >= 8 && !strncmp(target, "socket:[", 8) && is_in_repair(look->pidfd, number))
		look->sane = false;
}

static void look_at_sockets(const char *path, int pid, void *context)
{
	struct look *look = context;
	char descriptors[PROC_PATH_MAX];

	look->pidfd = pid == 1 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
	if (look->pidfd < 0)
		return;
	snprintf(descriptors, sizeof(descriptors), "%s/%d/fd", path, pid);
	each_number(descriptors, look_at_descriptor, look);
	close(look->pidfd);
}

/* ---- threads ---- */

static void look_at_thread(const char *path, int tid, void *context)
{
	struct look *look = context;
	char name[PROC_PATH_MAX + 32], line[256];
	FILE *status;

	snprintf(name, sizeof(name), "%s/%d/status", path, tid);
	status = fopen(name, "re");
	while (status && fgets(line, sizeof(line), status)) {
		if (!strncmp(line, "SigBlk:\t", 8) && strtoull(line + 8, NULL, 16) == PARASITE_MASK)
			look->sane = false;
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

bool pod_is_sane(void)
{
	const struct timespec interval = {.tv_nsec = INTERVAL_MS * 1000000L};
	int64_t deadline = clock_ms() + PATIENCE_MS;
	struct look look = {.sane = true};

	each_number("/proc", look_at_sockets, &look);
	while (look.sane) {
		each_number("/proc", look_at_process, &look);
		if (look.sane || clock_ms() >= deadline)
			break;
		look.sane = true;
		nanosleep(&interval, NULL);
	}
	return look.sane;
}
