/* Linux namespaces: looking, joining, and the mounts of a new pod. */
#ifndef SLURMCKPT_NAMESPACES_H
#define SLURMCKPT_NAMESPACES_H

#include <stdbool.h>
#include <sys/types.h>

#include "reason.h"

/* name as in /proc/PID/ns. Close-on-exec descriptor, or -1 with the reason. */
int namespace_open(pid_t pid, const char *name, struct reason *reason);

/* Whether this process is already in it. */
bool namespace_is_own(int fd, const char *name);

/* Whether the user namespace that owns it is this process's own: then only root can have made it. */
bool namespace_has_own_owner(int fd);

int namespace_join(int fd, const char *name, struct reason *reason);

/* In pid 1 of new PID, mount and IPC namespaces: private mounts, /proc, /dev/mqueue, and shm_dir (may be NULL) as /dev/shm. */
int namespace_mounts(const char *shm_dir, struct reason *reason);

/* A mount namespace of this process's own, in which shm_dir is /dev/shm. */
int namespace_shm(const char *shm_dir, struct reason *reason);

/* Whether text is SOURCE:TARGET, two absolute paths without a colon. */
bool namespace_bind_is_valid(const char *text);

/* SOURCE, with what is mounted below it, appears at TARGET too. Both are paths of this mount namespace, which must be a private one. */
int namespace_bind(const char *text, struct reason *reason);

#endif
