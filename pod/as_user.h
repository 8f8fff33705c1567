/* What this program, which is root, does with the rights that the job's user has on files. For single-threaded processes that may change their ids. */
#ifndef SLURMCKPT_AS_USER_H
#define SLURMCKPT_AS_USER_H

#include <stdbool.h>

/* uid: not root's. groups: as "1,2,3". False when they are not like that: then there is no user. */
bool as_user_is(unsigned uid, unsigned gid, const char *groups);
bool as_user_known(void);

/* False when that cannot be, and nothing has changed. Up to the end capabilities that concern files are gone. */
bool as_user_begin(void);
/* errno stays. */
void as_user_end(void);

#endif
