/* What the leader writes on the status pipe; native byte order, one write a record. */
#ifndef SLURMCKPT_STATUS_H
#define SLURMCKPT_STATUS_H

#include <stdint.h>

enum status_kind {
	STATUS_STARTED = 1,
	STATUS_EXITED = 2,
};

struct status_record {
	int32_t kind;
	int32_t index;
	int32_t pid;		/* inside the pod; 0: there was never a process */
	int32_t wait_status;	/* raw, of STATUS_EXITED */
};

/* Where the leader keeps it, so that a capture and a restore know which descriptor to declare external. */
#define STATUS_FD 3

_Static_assert(sizeof(struct status_record) == 16, "the record is 16 bytes");

#endif
