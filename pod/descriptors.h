/* The table of open descriptors. */
#ifndef SLURMCKPT_DESCRIPTORS_H
#define SLURMCKPT_DESCRIPTORS_H

#include <stdbool.h>
#include <stddef.h>

#include "reason.h"

/* All open descriptors but `except`, rising, in a new array. Returns how many there are, or -1 with errno. */
int descriptors_list(int **numbers, int except);

/* Closes everything but these (any order, repeats allowed). */
int descriptors_close_others(const int *keep, size_t count);

/* Moves fd to a number of 3 or above, close-on-exec; returns the new number, or -1 with errno (fd stays open). */
int descriptor_lift(int fd);

/* Moves fd to a number of `from` or above, close-on-exec, or, where there is none, to 3 or above; fd itself when that fails, too. */
int descriptor_lift_to(int fd, int from);

/* Opens /dev/null and makes it 0, 1 and (only if `with_stderr`) 2. */
int descriptors_silence(bool with_stderr, struct reason *reason);

/* Gives sources[i] the number targets[i], not close-on-exec, then closes every other descriptor. sources are changed on the way. */
int descriptors_place(int *sources, const int *targets, size_t count, struct reason *reason);

/* Raises the soft limit of open files to the hard one. */
void descriptors_raise_limit(void);

#endif
