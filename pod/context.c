#include "context.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "descriptors.h"
#include "namespaces.h"

static int check_namespaces(pid_t shim, struct reason *reason)
{
	static const char *const names[] = {"user", "pid", "net", "uts"};
	int result = 0;

	for (size_t i = 0; i < sizeof(names) / sizeof(*names) && !result; i++) {
		int fd = namespace_open(shim, names[i], reason);

		if (fd < 0)
			result = -1;
		else if (!namespace_is_own(fd, names[i]))
			result = refuse(reason, "the task has a %s namespace of its own", names[i]);
		if (fd >= 0)
			close(fd);
	}
	return result;
}

/* Only raised: what a task must have less of, it takes from its payload. Without CAP_SYS_RESOURCE this cannot be done, and need not fail. */
static void raise_hard_limits(pid_t shim)
{
	for (int resource = 0; resource < RLIM_NLIMITS; resource++) {
		struct rlimit theirs, own;

		if (!prlimit(shim, (__rlimit_resource_t)resource, NULL, &theirs) && !getrlimit((__rlimit_resource_t)resource, &own) &&
		    theirs.rlim_max > own.rlim_max) {
			own.rlim_max = theirs.rlim_max;
			setrlimit((__rlimit_resource_t)resource, &own);
		}
	}
}

static void copy_oom_adjustment(pid_t shim)
{
	char path[64], value[16];
	ssize_t size = -1;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/oom_score_adj", shim);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		size = read(fd, value, sizeof(value));
		close(fd);
	}
	fd = size > 0 ? open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC) : -1;
	if (fd >= 0) {
		/* a coordinator started by a protected slurmd must not make tasks that the OOM killer spares; nothing depends on success */
		if (write(fd, value, (size_t)size) < 0)
			errno = 0;
		close(fd);
	}
}

int context_adopt(pid_t shim, struct reason *reason)
{
	int mounts = -1, result = -1, nice;

	/*
	 * Of the mounts that are joined it is the very namespace that is checked, not the shim: its user may trace it and make it
	 * change namespaces between two looks, and what lies in the mounts is executed as root.
	 */
	mounts = namespace_open(shim, "mnt", reason);
	if (mounts < 0)
		goto out;
	if (!namespace_has_own_owner(mounts)) {
		refuse(reason, "the task has mounts that its user made");
		goto out;
	}
	if (check_namespaces(shim, reason))
		goto out;
	raise_hard_limits(shim);
	descriptors_raise_limit();
	copy_oom_adjustment(shim);
	errno = 0;
	nice = getpriority(PRIO_PROCESS, (id_t)shim);
	if (!errno)
		setpriority(PRIO_PROCESS, 0, nice);
	result = namespace_is_own(mounts, "mnt") ? 0 : namespace_join(mounts, "mnt", reason);
out:
	if (mounts >= 0)
		close(mounts);
	return result;
}
