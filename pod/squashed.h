/* File systems on which root is nobody (NFS with root_squash): what CRIU may not do there the job's user may. */
#ifndef SLURMCKPT_SQUASHED_H
#define SLURMCKPT_SQUASHED_H

/* From now on calls of this program about files that root is denied (EACCES, EPERM) are tried once more as the user (as_user.h). */
void squashed_retry(void);

#endif
