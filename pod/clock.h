/* Time for deadlines. */
#ifndef SLURMCKPT_CLOCK_H
#define SLURMCKPT_CLOCK_H

#include <limits.h>
#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC in milliseconds. */
static inline int64_t clock_ms(void)
{
	struct timespec now = {0};

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Until then, for poll(2): 0 when it is over. */
static inline int clock_ms_until(int64_t deadline)
{
	int64_t left = deadline - clock_ms();

	return left <= 0 ? 0 : left > INT_MAX ? INT_MAX : (int)left;
}

#endif
