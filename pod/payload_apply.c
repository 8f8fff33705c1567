#include "payload_apply.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "signals.h"

int payload_read_with(int fd, size_t fd_count, struct payload *payload, struct reason *reason)
{
	int result = payload_read(fd, payload, reason);

	if (!result && payload->fd_count != fd_count)
		result = refuse(reason, "the payload names %zu descriptors, %zu came", payload->fd_count, fd_count);
	return result;
}

/* A hard limit above our own cannot be had without privileges; then our own is the limit. */
static void apply_limit(int resource, struct rlimit limit)
{
	struct rlimit own;

	if (!getrlimit((__rlimit_resource_t)resource, &own)) {
		if (limit.rlim_max > own.rlim_max)
			limit.rlim_max = own.rlim_max;
		if (limit.rlim_cur > limit.rlim_max)
			limit.rlim_cur = limit.rlim_max;
		setrlimit((__rlimit_resource_t)resource, &limit);
	}
}

void payload_apply(const struct payload *payload)
{
	umask(payload->umask);
	/* these three can be refused by the kernel; then what was taken from a shim of the same step stays */
	if (payload->has_nice)
		setpriority(PRIO_PROCESS, 0, payload->nice);
	if (payload->affinity_size)
		syscall(SYS_sched_setaffinity, 0, payload->affinity_size, payload->affinity);
	for (int resource = 0; resource < RLIM_NLIMITS; resource++) {
		if (payload->has_limit[resource])
			apply_limit(resource, payload->limits[resource]);
	}
	signals_set_ignored(payload->ignored);
}
