/* System calls that CRIU cannot capture are made to look as if the kernel did not have them. */
#ifndef SLURMCKPT_SECCOMP_H
#define SLURMCKPT_SECCOMP_H

#include "reason.h"

/* io_uring_setup gives ENOSYS in this process and all it starts. Needs CAP_SYS_ADMIN, so that no_new_privs can stay off. */
int seccomp_deny_io_uring(struct reason *reason);

#endif
