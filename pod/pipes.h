/* Pipes that CRIU makes anew belong to the job's user. */
#ifndef SLURMCKPT_PIPES_H
#define SLURMCKPT_PIPES_H

/* From now on pipes of this program are the user's (as_user.h). */
void pipes_are_users(void);

#endif
