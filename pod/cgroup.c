#include "cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int cgroup_join(const char *procs_file, struct reason *reason)
{
	int fd = open(procs_file, O_WRONLY | O_CLOEXEC);
	int result = 0;

	/* "0" is the writing process */
	if (fd < 0)
		result = refuse(reason, "cannot open %s: %s", procs_file, strerror(errno));
	else if (write(fd, "0", 1) != 1)
		result = refuse(reason, "cannot join %s: %s", procs_file, strerror(errno));
	if (fd >= 0)
		close(fd);
	return result;
}
