/*
 * Signals through the kernel's own calls. The C library hides signals 32 and 33 from its users, and a task may get those too.
 */
#ifndef SLURMCKPT_SIGNALS_H
#define SLURMCKPT_SIGNALS_H

#include <stdbool.h>
#include <stdint.h>

#define SIGNAL_MAX 64

/* Bit n-1 stands for signal n, as in /proc/PID/status. */
typedef uint64_t signal_mask;

#define SIGNALS_ALL UINT64_MAX

static inline signal_mask signal_bit(int number)
{
	return (signal_mask)1 << (number - 1);
}

/* Returns the mask there was before. */
signal_mask signals_set_mask(signal_mask mask);

signal_mask signals_ignored(void);

/* Ignores these and gives all others their default action. */
void signals_set_ignored(signal_mask ignored);

/* A non-blocking, close-on-exec signalfd, or -1 with errno. The signals must be blocked. */
int signals_open(signal_mask mask);

/* The number of the next signal that arrived, or 0. */
int signals_read(int fd);

/* The same; *outside: whether a process sent it that is not of this PID namespace. */
int signals_read_origin(int fd, bool *outside);

bool signals_pending(int number);

/* Takes a pending, blocked signal away. */
void signals_discard(int number);

#endif
