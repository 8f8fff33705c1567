#include "exec_task.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "descriptors.h"
#include "exec_program.h"
#include "line.h"
#include "payload_apply.h"

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

_Noreturn void exec_task(int payload_fd, int *fds, size_t fd_count)
{
	/* Until the payload is read nobody knows which one is standard error. A shim sends 0, 1, 2 first. */
	int error_fd = fd_count > 2 ? fds[2] : -1;
	struct payload payload;
	struct reason reason;

	if (payload_read_with(payload_fd, fd_count, &payload, &reason))
		give_up(error_fd, &reason);
	for (size_t i = 0; i < fd_count; i++) {
		if (payload.fds[i] == STDERR_FILENO)
			error_fd = fds[i];
	}
	if (descriptors_place(fds, payload.fds, fd_count, &reason))
		give_up(error_fd, &reason);
	enter_directory(payload.cwd);
	payload_apply(&payload);
	exec_program(payload.argv, payload.envp, payload.blocked);
}
