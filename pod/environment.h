/* An environment that somebody else has written into a file: NUL-ended strings. */
#ifndef SLURMCKPT_ENVIRONMENT_H
#define SLURMCKPT_ENVIRONMENT_H

#include "reason.h"

/* Makes it the environment of this process. fd is a regular file or a memfd, read from its beginning. */
int environment_adopt(int fd, struct reason *reason);

#endif
