/* What CRIU, as root, makes and changes in the file system is never more than the job's user could have led it to. */
#ifndef SLURMCKPT_GUARDED_H
#define SLURMCKPT_GUARDED_H

#include <sys/socket.h>
#include <sys/types.h>

/* From now on names are made, changed and removed as the user (as_user.h), but where nobody except root can change what is there. */
void guarded_names(void);

/* As open(2), openat(2) and bind(2), under that rule. */
int guarded_open(const char *path, int flags, mode_t mode);
int guarded_openat(int at, const char *path, int flags, mode_t mode);
int guarded_bind(int fd, const struct sockaddr *name, socklen_t size);

#endif
