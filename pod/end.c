#include "end.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "signals.h"

bool is_end_status(int wait_status)
{
	/* bits above 15 are never set by the kernel */
	return !(wait_status & ~0xffff) &&
	       ((WIFEXITED(wait_status)) || (WIFSIGNALED(wait_status) && !(wait_status & 0xff00) && WTERMSIG(wait_status) <= SIGNAL_MAX));
}

_Noreturn void end_like(int wait_status)
{
	if (WIFSIGNALED(wait_status)) {
		struct rlimit none = {0};
		int number = WTERMSIG(wait_status);

		/* a core limit of 0 does not stop a core_pattern that is a pipe; not being dumpable does */
		setrlimit(RLIMIT_CORE, &none);
		prctl(PR_SET_DUMPABLE, 0);
		signals_set_ignored(0);
		kill(getpid(), number);
		signals_set_mask(~signal_bit(number));
		/* only reached for a signal whose default action is not to end a process */
		_exit(128 + number);
	}
	_exit(WEXITSTATUS(wait_status));
}
