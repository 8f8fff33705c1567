/*
 * A freeze interrupts the calls in which threads wait. Most go on by themselves afterwards. For some the kernel has no way to do that, and for
 * others it has, but CRIU forgets it: both would fail with EINTR at each checkpoint, as if a signal had come, in programs that have no handler
 * and expect none. So when all processes stand still, and nothing has been injected yet, this puts such threads back in front of their call,
 * with its arguments: they make it again, in the process that goes on as well as in the image.
 *
 * A call with a time limit then waits for all of it once more. Where that may be long, EINTR is the better answer (it is the program's turn to
 * reckon what is left), unless the limit is a moment, or the kernel has written what is left where the call takes it from. A sleep that does not
 * ask for its rest gets a place for it at the first freeze: otherwise a sleep that is longer than the interval would never end.
 */
#include "restart.h"

#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#include <dirent.h>

#if defined(__x86_64__)
#include <sys/user.h>

/* What a program may wait too long, at most. */
#define LIMIT_MS 10000
/* include/linux/errno.h: the kernel's own, seen by tracers only */
#define ERESTART_RESTARTBLOCK 516
/* uapi/linux/futex.h */
#define FUTEX_COMMAND 127
#define FUTEX_WAIT 0
/* the instruction `syscall` */
#define SYSCALL_INSTRUCTION 0x050f
#define SYSCALL_SIZE 2

typedef struct user_regs_struct registers;

static bool is_short_ms(int milliseconds)
{
	return milliseconds < 0 || milliseconds <= LIMIT_MS;
}

/* A time limit in the memory of the thread; no limit where there is none. */
static bool is_short(pid_t tid, unsigned long long address)
{
	struct timespec limit = {0};
	struct iovec here = {&limit, sizeof(limit)}, there = {(void *)(uintptr_t)address, sizeof(limit)};

	if (!address)
		return true;
	return process_vm_readv(tid, &here, 1, &there, 1, 0) == (ssize_t)sizeof(limit) && limit.tv_sec < LIMIT_MS / 1000;
}

/* Sleeps: where nobody wants to know what is left, or where it has been written into the very argument. */
static bool is_sleep_to_restart(unsigned long long request, unsigned long long remaining)
{
	return !remaining || remaining == request;
}

/* Whether a thread executes the C library there: glibc or musl, whose sleeping functions do not look at their arguments any more afterwards
 * (they are the caller's to lose, by the ABI). */
static bool is_in_libc(pid_t tid, unsigned long long address)
{
	unsigned long long begin, end;
	char path[32], *line = NULL, *name;
	size_t size = 0;
	bool found = false;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)tid);
	maps = fopen(path, "re");
	if (!maps)
		return false;
	while (!found && getline(&line, &size, maps) > 0) {
		if (sscanf(line, "%llx-%llx", &begin, &end) != 2 || address < begin || address >= end)
			continue;
		name = strrchr(line, '/');
		if (!name)
			break;
		found = !strncmp(name, "/libc.so", 8) || !strncmp(name, "/libc-2.", 8) || !strncmp(name, "/ld-musl-", 9);
		break;
	}
	free(line);
	fclose(maps);
	return found;
}

/* Have a sleep that does not ask for its rest put it where it takes its time from, below the thread's stack: at the next freeze it then goes on
 * with what is left. How long it has slept until the first one nobody can tell. Without such a place it begins anew each time. */
static void note_the_rest(pid_t tid, const registers *at, unsigned long long *request, unsigned long long *remaining)
{
	/* x86-64 psABI: 128 bytes below the stack pointer are the function's own */
	const unsigned long long place = (at->rsp - 128 - 2 * sizeof(struct timespec)) & ~15ULL;
	struct timespec asked;
	struct iovec here = {&asked, sizeof(asked)};
	struct iovec from = {(void *)(uintptr_t)*request, sizeof(asked)}, to = {(void *)(uintptr_t)place, sizeof(asked)};

	if (*remaining || !is_in_libc(tid, at->rip))
		return;
	if (process_vm_readv(tid, &here, 1, &from, 1, 0) != (ssize_t)sizeof(asked) ||
	    process_vm_writev(tid, &here, 1, &to, 1, 0) != (ssize_t)sizeof(asked))
		return;
	*request = place;
	*remaining = place;
}

/* Set the arguments for the next time. */
static void prepare(pid_t tid, registers *at)
{
	if (at->orig_rax == SYS_nanosleep)
		note_the_rest(tid, at, &at->rdi, &at->rsi);
	else if (at->orig_rax == SYS_clock_nanosleep)
		note_the_rest(tid, at, &at->rdx, &at->r10);
}

/* Whether it is right to make the interrupted call once more. */
static bool is_to_restart(pid_t tid, const registers *at)
{
	const bool forgotten = (long long)at->rax == -ERESTART_RESTARTBLOCK;

	if (!forgotten && (long long)at->rax != -EINTR)
		return false;
	switch (at->orig_rax) {
	case SYS_nanosleep:
		return forgotten && is_sleep_to_restart(at->rdi, at->rsi);
	case SYS_clock_nanosleep:
		return forgotten && is_sleep_to_restart(at->rdx, at->r10);
	case SYS_poll:
		return forgotten && is_short_ms((int)at->rdx);
	case SYS_futex:
		/* all other commands have a moment as their limit */
		return forgotten && ((at->rsi & FUTEX_COMMAND) != FUTEX_WAIT || is_short(tid, at->r10));
	case SYS_epoll_wait:
	case SYS_epoll_pwait:
		return is_short_ms((int)at->r10);
#ifdef SYS_epoll_pwait2
	case SYS_epoll_pwait2:
#endif
	case SYS_semtimedop:
		return is_short(tid, at->r10);
	case SYS_semop:
		return true;
	case SYS_rt_sigtimedwait:
		return is_short(tid, at->rdx);
	case SYS_io_getevents:
		return is_short(tid, at->r8);
	default:
		return false;
	}
}

/* Whether a signal waits to be handled: then the call was rightly interrupted. In doubt there is one. */
static bool has_signal(pid_t tid)
{
	unsigned long long waiting = 0, blocked = 0;
	char path[32], line[256];
	FILE *status;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)tid);
	status = fopen(path, "re");
	if (!status)
		return true;
	while (fgets(line, sizeof(line), status)) {
		if (!strncmp(line, "SigPnd:", 7) || !strncmp(line, "ShdPnd:", 7))
			waiting |= strtoull(line + 7, NULL, 16);
		if (!strncmp(line, "SigBlk:", 7))
			blocked = strtoull(line + 7, NULL, 16);
	}
	fclose(status);
	return (waiting & ~blocked) != 0;
}

static void look_at(pid_t tid)
{
	registers at;
	struct iovec set = {&at, sizeof(at)};
	long code;

	/* of another size: a thread of 32 bits */
	if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &set) || set.iov_len != sizeof(at))
		return;
	if ((long long)at.orig_rax < 0 || !is_to_restart(tid, &at) || has_signal(tid))
		return;
	errno = 0;
	code = ptrace(PTRACE_PEEKTEXT, tid, (void *)(uintptr_t)(at.rip - SYSCALL_SIZE), NULL);
	if (errno || (code & 0xffff) != SYSCALL_INSTRUCTION)
		return;
	prepare(tid, &at);
	at.rax = at.orig_rax;
	at.rip -= SYSCALL_SIZE;
	ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &set);
}

int restart_interrupted(int pid)
{
	char path[32];
	struct dirent *entry;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	tasks = opendir(path);
	while (tasks && (entry = readdir(tasks))) {
		if (entry->d_name[0] != '.')
			look_at((pid_t)atoi(entry->d_name));
	}
	if (tasks)
		closedir(tasks);
	return 0;
}
#else
int restart_interrupted(int pid)
{
	(void)pid;
	return -ENOTSUP;
}
#endif
