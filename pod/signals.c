#include "signals.h"

#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "the layout of the kernel's struct sigaction is stated for x86_64 and aarch64 only"
#endif

/* The kernel's struct sigaction (include/linux/signal_types.h), the same on x86_64 and aarch64. */
struct kernel_sigaction {
	void (*handler)(int);
	unsigned long flags;
	void *restorer;
	uint64_t mask;
};

signal_mask signals_set_mask(signal_mask mask)
{
	signal_mask before = 0;

	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, &before, sizeof(mask));
	return before;
}

signal_mask signals_ignored(void)
{
	signal_mask ignored = 0;

	for (int number = 1; number <= SIGNAL_MAX; number++) {
		struct kernel_sigaction action = {0};

		if (!syscall(SYS_rt_sigaction, number, NULL, &action, sizeof(action.mask)) && action.handler == SIG_IGN)
			ignored |= signal_bit(number);
	}
	return ignored;
}

void signals_set_ignored(signal_mask ignored)
{
	for (int number = 1; number <= SIGNAL_MAX; number++) {
		struct kernel_sigaction action = {.handler = ignored & signal_bit(number) ? SIG_IGN : SIG_DFL};

		/* fails for SIGKILL and SIGSTOP, whose action is always the default one */
		syscall(SYS_rt_sigaction, number, &action, NULL, sizeof(action.mask));
	}
}

int signals_open(signal_mask mask)
{
	return (int)syscall(SYS_signalfd4, -1, &mask, sizeof(mask), SFD_NONBLOCK | SFD_CLOEXEC);
}

int signals_read(int fd)
{
	bool outside;

	return signals_read_origin(fd, &outside);
}

int signals_read_origin(int fd, bool *outside)
{
	struct signalfd_siginfo info;

	if (read(fd, &info, sizeof(info)) != sizeof(info))
		return 0;
	/* the pid of a sender is translated for the receiver, and 0 has no process (kernel/signal.c, send_signal_locked) */
	*outside = (info.ssi_code == SI_USER || info.ssi_code == SI_TKILL) && info.ssi_pid == 0;
	return (int)info.ssi_signo;
}

bool signals_pending(int number)
{
	signal_mask pending = 0;

	syscall(SYS_rt_sigpending, &pending, sizeof(pending));
	return pending & signal_bit(number);
}

void signals_discard(int number)
{
	signal_mask mask = signal_bit(number);
	struct timespec now = {0};

	syscall(SYS_rt_sigtimedwait, &mask, NULL, &now, sizeof(mask));
}
