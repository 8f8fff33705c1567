/*
 * Root does what CRIU does, and where a file server takes root for nobody, that is nothing in a home that is its user's alone: no path can be
 * looked at for an image, and no file opened at a restore. So what fails for want of rights is tried again as the user, for the time of the one
 * call; what CRIU may do as root it does as root. The user gets nothing by that which it could not open itself.
 */
#include "squashed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/types.h>
#include <unistd.h>

#include "as_user.h"
#include "guarded.h"
#include "imports.h"

/* Not geteuid(): a call may be made for a process whose ids are the user's already. */
static bool is_denied(long result)
{
	return result < 0 && (errno == EACCES || errno == EPERM) && !geteuid();
}

/* The call as root, and `again` as the user where root may not. Where the user may not either, root's error stands. */
#define RETRIED_BY(type, name, parameters, call, again)												\
	static type retried_##name parameters													\
	{																	\
		type result = call;														\
		int kept;															\
																		\
		if (is_denied(result)) {													\
			kept = errno;														\
			if (as_user_begin()) {													\
				result = again;													\
				as_user_end();													\
			}															\
			if (result < 0)														\
				errno = kept;													\
		}																\
		return result;															\
	}
#define RETRIED(type, name, parameters, arguments) RETRIED_BY(type, name, parameters, name arguments, name arguments)

/* Files that are made are none of these. What is passed on without need (a mode) nobody looks at. */
RETRIED_BY(int, open_there, (const char *path, int flags, mode_t mode), open(path, flags, mode), open(path, flags, mode))
RETRIED_BY(int, openat_there, (int at, const char *path, int flags, mode_t mode), openat(at, path, flags, mode), openat(at, path, flags, mode))

static int retried_open(const char *path, int flags, mode_t mode)
{
	return flags & O_CREAT ? guarded_open(path, flags, mode) : retried_open_there(path, flags, mode);
}

static int retried_openat(int at, const char *path, int flags, mode_t mode)
{
	return flags & O_CREAT ? guarded_openat(at, path, flags, mode) : retried_openat_there(at, path, flags, mode);
}

RETRIED(int, stat, (const char *path, struct stat *status), (path, status))
RETRIED(int, lstat, (const char *path, struct stat *status), (path, status))
RETRIED(int, fstatat, (int at, const char *path, struct stat *status, int flags), (at, path, status, flags))
RETRIED(int, statfs, (const char *path, struct statfs *status), (path, status))
/* These two ask for the real id, which is not the user's. */
RETRIED_BY(int, access, (const char *path, int mode), access(path, mode), faccessat(AT_FDCWD, path, mode, AT_EACCESS))
RETRIED_BY(int, faccessat, (int at, const char *path, int mode, int flags), faccessat(at, path, mode, flags),
	   faccessat(at, path, mode, flags | AT_EACCESS))
RETRIED(ssize_t, readlink, (const char *path, char *text, size_t size), (path, text, size))
RETRIED(ssize_t, readlinkat, (int at, const char *path, char *text, size_t size), (at, path, text, size))
RETRIED(int, chdir, (const char *path), (path))
RETRIED(int, fchdir, (int directory), (directory))
RETRIED(int, fchmod, (int fd, mode_t mode), (fd, mode))
RETRIED(int, fchown, (int fd, uid_t owner, gid_t of), (fd, owner, of))
RETRIED(int, ftruncate, (int fd, off_t size), (fd, size))
RETRIED(int, inotify_add_watch, (int fd, const char *path, uint32_t mask), (fd, path, mask))

/* Both names of those that have one of their own for large files, which are the same on 64-bit machines. */
#define UNDER(name, function) {name, (uintptr_t)(function)}
#define BOTH(name) UNDER(#name, retried_##name), UNDER(#name "64", retried_##name)
#define ONE(name) UNDER(#name, retried_##name)

void squashed_retry(void)
{
	static const struct import all[] = {
		BOTH(open), BOTH(openat), BOTH(stat), BOTH(lstat), BOTH(fstatat), BOTH(statfs), BOTH(ftruncate), ONE(access), ONE(faccessat),
		ONE(readlink), ONE(readlinkat), ONE(chdir), ONE(fchdir), ONE(fchmod), ONE(fchown), ONE(inotify_add_watch),
	};

	imports_replace(all, sizeof(all) / sizeof(all[0]));
}
