/* Whose root directory and user namespace a process lives in. */
#ifndef SLURMCKPT_ORIGIN_H
#define SLURMCKPT_ORIGIN_H

#include <stdbool.h>
#include <sys/types.h>

struct origin {
	dev_t root_dev;
	ino_t root_ino;
	dev_t user_dev;
	ino_t user_ino;
};

/* Those of the calling process. What cannot be read counts as 0. */
struct origin origin_now(void);

bool origin_equal(const struct origin *a, const struct origin *b);

#endif
