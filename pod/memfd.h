/* Sealed files in memory, to be handed to another process. */
#ifndef SLURMCKPT_MEMFD_H
#define SLURMCKPT_MEMFD_H

#include <stddef.h>

#include "reason.h"

/*
 * A memfd with these bytes and these seals (F_SEAL_...), at a number of 3 or above, close-on-exec; or -1 with the reason, in which `what`
 * names its content. It works whatever the soft file size limit is.
 */
int memfd_with(const char *what, const char *bytes, size_t size, int seals, struct reason *reason);

#endif
