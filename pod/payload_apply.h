/* Making the calling process what a payload describes. It has the user's rights and no others by then: a payload is the user's data. */
#ifndef SLURMCKPT_PAYLOAD_APPLY_H
#define SLURMCKPT_PAYLOAD_APPLY_H

#include <stddef.h>

#include "payload.h"
#include "reason.h"

/* payload_read, for a process that got this many descriptors beside it. */
int payload_read_with(int fd, size_t fd_count, struct payload *payload, struct reason *reason);

/* Everything but descriptors, directory, environment and the blocked signals. What the kernel refuses stays as it is. */
void payload_apply(const struct payload *payload);

#endif
