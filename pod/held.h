/*
 * Held output: the beginning of a line that the task has not completed yet, in memory shared with the coordinator, which reads it at a
 * checkpoint and writes it at a restore.
 */
#ifndef SLURMCKPT_HELD_H
#define SLURMCKPT_HELD_H

#include <stddef.h>
#include <stdint.h>

#include "reason.h"

/* Always fewer than this: SLURM_IO_MAX_MSG_LEN, where slurmstepd passes the beginning of a line on as well (src/common/io_hdr.h). */
#define HELD_LIMIT 1024
/* Slot n-1 is of the task's descriptor n. */
#define HELD_SLOTS 2
#define HELD_SLOT_BYTES 2048

struct held {
	uint32_t size;
	char bytes[HELD_SLOT_BYTES - sizeof(uint32_t)];
};

_Static_assert(sizeof(struct held) == HELD_SLOT_BYTES, "the layout is shared with the coordinator");

/* HELD_SLOTS empty slots, and their memfd (3 or above, close-on-exec), which cannot change its size; or NULL with the reason. */
struct held *held_open(int *memfd, struct reason *reason);

/* What the memory says, which may be any number. */
uint32_t held_stated_size(const struct held *held);

/* The number of held bytes; 0 when the memory states an impossible one. */
size_t held_size(const struct held *held);

/* size must be below HELD_LIMIT. */
void held_set(struct held *held, const char *bytes, size_t size);

#endif
