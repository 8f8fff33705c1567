#include "pids.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "number.h"

/* Both speak of the namespace of the process that reads or writes them, wherever /proc was mounted; the second does so since Linux 6.14. */
static const char LAST[] = "/proc/sys/kernel/ns_last_pid";
static const char MAX[] = "/proc/sys/kernel/pid_max";

static pid_t read_pid(const char *path, struct reason *reason)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char text[16] = "";
	ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	uint64_t value = 0;
	pid_t result = -1;

	if (size < 0) {
		refuse(reason, "cannot read %s: %s", path, strerror(errno));
	} else {
		text[strcspn(text, "\n")] = '\0';
		if (parse_number(text, 10, INT_MAX, &value))
			result = (pid_t)value;
		else
			refuse(reason, "%s says %s, which is no pid", path, text);
	}
	if (fd >= 0)
		close(fd);
	return result;
}

pid_t pids_last(struct reason *reason)
{
	return read_pid(LAST, reason);
}

pid_t pids_max(struct reason *reason)
{
	return read_pid(MAX, reason);
}

int pids_continue_after(pid_t last, struct reason *reason)
{
	int fd = open(LAST, O_WRONLY | O_CLOEXEC);
	int result = 0;

	if (fd < 0 || dprintf(fd, "%d", last) < 0)
		result = refuse(reason, "cannot write %d to %s: %s", last, LAST, strerror(errno));
	if (fd >= 0)
		close(fd);
	return result;
}
