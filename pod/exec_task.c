#include "exec_task.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "descriptors.h"
#include "exec_program.h"
#include "line.h"
#include "payload.h"
#include "signals.h"

_Noreturn static void give_up(int error_fd, const struct reason *reason)
{
	print_format(error_fd, "slurmckpt: cannot start the task: %s", reason->text);
	_exit(1);
}

/* As slurmstepd does, in its words (src/slurmd/slurmstepd/mgr.c): /tmp is the second choice. */
static void enter_directory(const char *cwd)
{
	if (chdir(cwd)) {
		print_format(STDERR_FILENO, "slurmstepd: error: couldn't chdir to `%s': %s: going to /tmp instead", cwd, strerror(errno));
		if (chdir("/tmp")) {
			print_line(STDERR_FILENO, "slurmstepd: error: couldn't chdir to /tmp either. dying.");
			_exit(1);
		}
	}
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

static void apply(const struct payload *payload)
{
	umask(payload->umask);
	/* these three can be refused by the kernel; the task then keeps what the pod has, which was taken from a shim of the same step */
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

_Noreturn void exec_task(int payload_fd, int *fds, size_t fd_count)
{
	/* Until the payload is read nobody knows which one is standard error. A shim sends 0, 1, 2 first. */
	int error_fd = fd_count > 2 ? fds[2] : -1;
	struct payload payload;
	struct reason reason;

	if (payload_read(payload_fd, &payload, &reason))
		give_up(error_fd, &reason);
	if (payload.fd_count != fd_count) {
		refuse(&reason, "the payload names %zu descriptors, %zu came", payload.fd_count, fd_count);
		give_up(error_fd, &reason);
	}
	for (size_t i = 0; i < fd_count; i++) {
		if (payload.fds[i] == STDERR_FILENO)
			error_fd = fds[i];
	}
	if (descriptors_place(fds, payload.fds, fd_count, &reason))
		give_up(error_fd, &reason);
	enter_directory(payload.cwd);
	apply(&payload);
	exec_program(payload.argv, payload.envp, payload.blocked);
}
