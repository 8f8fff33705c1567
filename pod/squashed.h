/* File systems on which root is nobody (NFS with root_squash): what CRIU may not do there the job's user may. */
#ifndef SLURMCKPT_SQUASHED_H
#define SLURMCKPT_SQUASHED_H

/* From now on calls of this program about files that root is denied (EACCES, EPERM) are tried once more with the user's rights on files: these ids
 * and the groups in the text `groups`, as "1,2,3". For a program of single-threaded processes that may change its ids. */
void squashed_root_is(unsigned uid, unsigned gid, const char *groups);

#endif
