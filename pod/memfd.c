#include "memfd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "descriptors.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

static int create(const char *what)
{
	unsigned int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "slurmckpt-%s", what);
	fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
	/* before Linux 6.3 the flag is unknown */
	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, flags);
	return fd;
}

static int fill_and_seal(int fd, const char *bytes, size_t size, int seals)
{
	size_t done = 0;

	while (done < size) {
		ssize_t written = write(fd, bytes + done, size - done);

		if (written < 0 && errno != EINTR)
			return -1;
		done += written > 0 ? (size_t)written : 0;
	}
	return fcntl(fd, F_ADD_SEALS, seals);
}

int memfd_with(const char *what, const char *bytes, size_t size, int seals, struct reason *reason)
{
	struct rlimit limit, raised;
	int fd = -1, lifted = -1;

	/* it counts against the task's own RLIMIT_FSIZE, and exceeding that would raise SIGXFSZ: use what the hard limit allows */
	if (getrlimit(RLIMIT_FSIZE, &limit))
		return refuse(reason, "cannot read the file size limit: %s", strerror(errno));
	raised = limit;
	raised.rlim_cur = limit.rlim_max;
	if (limit.rlim_max < size)
		return refuse(reason, "the file size limit (ulimit -f) is below the %zu bytes needed", size);
	setrlimit(RLIMIT_FSIZE, &raised);
	fd = create(what);
	if (fd < 0 || fill_and_seal(fd, bytes, size, seals))
		refuse(reason, "cannot write the %s: %s", what, strerror(errno));
	else if ((lifted = descriptor_lift(fd)) < 0)
		refuse(reason, "cannot move the descriptor of the %s: %s", what, strerror(errno));
	setrlimit(RLIMIT_FSIZE, &limit);
	if (lifted < 0 && fd >= 0)
		close(fd);
	return lifted;
}
