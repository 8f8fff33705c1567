/*
 * Root does what CRIU does, and where a file server takes root for nobody, that is nothing in a home that is its user's alone: no path can be
 * looked at for an image, and no file opened at a restore. So what fails for want of rights is tried again as the user, for the time of the one
 * call; what CRIU may do as root it does as root. The user gets nothing by that which it could not open itself.
 *
 * What CRIU makes, moves, removes or gives away by its path, as a directory that was deleted, it does as root only where nobody but root can
 * change the way there. Elsewhere it is done as the user: a link that stands in the place of a directory by then would lead it to root's own.
 */
#include "squashed.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <unistd.h>

#include "imports.h"
#include "number.h"

static unsigned user, group;
static gid_t *user_groups;
static size_t user_group_count;

/* Root's, from become_user() to become_root(). */
static gid_t *root_groups;
static int root_group_count;

/* Not geteuid(): a call may be made for a process whose ids are the user's already. */
static bool is_denied(long result)
{
	return result < 0 && (errno == EACCES || errno == EPERM) && !geteuid();
}

/* Of this thread alone, unlike the C library's setgroups(). With the file-system id go the capabilities that concern files, and come back. */
static bool become_user(void)
{
	bool done = false;

	root_group_count = getgroups(0, NULL);
	root_groups = root_group_count < 0 ? NULL : calloc((size_t)root_group_count + 1, sizeof(gid_t));
	if (root_groups && (!root_group_count || getgroups(root_group_count, root_groups) == root_group_count) &&
	    !syscall(SYS_setgroups, user_group_count, user_groups)) {
		setfsgid(group);
		setfsuid(user);
		done = true;
	} else {
		free(root_groups);
	}
	return done;
}

static void become_root(void)
{
	const int kept = errno;

	setfsuid(0);
	setfsgid(getegid());
	syscall(SYS_setgroups, root_group_count, root_groups);
	free(root_groups);
	errno = kept;
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
			if (become_user()) {													\
				result = again;													\
				become_root();													\
			}															\
			if (result < 0)														\
				errno = kept;													\
		}																\
		return result;															\
	}
#define RETRIED(type, name, parameters, arguments) RETRIED_BY(type, name, parameters, name arguments, name arguments)

static bool is_roots_directory(int at, const char *path, int flags)
{
	struct stat status;

	return !fstatat(at, path, &status, flags) && S_ISDIR(status.st_mode) && !status.st_uid &&
	       (!(status.st_mode & 022) || status.st_mode & S_ISVTX);
}

/* Whether nobody but root can change which object `path` leads to, but for the last name of it. */
static bool is_way_roots(int at, const char *path)
{
	char way[PATH_MAX];
	const size_t size = strlen(path);
	bool roots = size < sizeof(way) && is_roots_directory(at, path[0] == '/' ? "/" : ".", 0);

	if (roots)
		memcpy(way, path, size + 1);
	for (size_t i = 1; roots && i < size; i++) {
		if (way[i] != '/' || way[i - 1] == '/')
			continue;
		way[i] = '\0';
		roots = is_roots_directory(at, way, AT_SYMLINK_NOFOLLOW);
		way[i] = '/';
	}
	return roots;
}

/* The call where that is root's, and else as the user, for good. */
#define GUARDED(type, name, parameters, arguments, roots)											\
	static type guarded_##name parameters													\
	{																	\
		type result = -1;														\
																		\
		if (geteuid() || (roots)) {													\
			result = name arguments;												\
		} else if (become_user()) {													\
			result = name arguments;												\
			become_root();														\
		} else {															\
			errno = EPERM;														\
		}																\
		return result;															\
	}

/* Files that are there are opened as root, and looked at once more before anybody runs; those that are made are not. What is passed on without
 * need (a mode) nobody looks at. */
RETRIED_BY(int, open_there, (const char *path, int flags, mode_t mode), open(path, flags, mode), open(path, flags, mode))
RETRIED_BY(int, openat_there, (int at, const char *path, int flags, mode_t mode), openat(at, path, flags, mode), openat(at, path, flags, mode))
GUARDED(int, open, (const char *path, int flags, mode_t mode), (path, flags, mode), is_way_roots(AT_FDCWD, path))
GUARDED(int, openat, (int at, const char *path, int flags, mode_t mode), (at, path, flags, mode), is_way_roots(at, path))

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
GUARDED(int, link, (const char *path, const char *other), (path, other), is_way_roots(AT_FDCWD, path) && is_way_roots(AT_FDCWD, other))
GUARDED(int, linkat, (int at, const char *path, int to, const char *other, int flags), (at, path, to, other, flags), is_way_roots(to, other))
GUARDED(int, unlink, (const char *path), (path), is_way_roots(AT_FDCWD, path))
GUARDED(int, unlinkat, (int at, const char *path, int flags), (at, path, flags), is_way_roots(at, path))
GUARDED(int, rename, (const char *path, const char *other), (path, other), is_way_roots(AT_FDCWD, path) && is_way_roots(AT_FDCWD, other))
GUARDED(int, mkdir, (const char *path, mode_t mode), (path, mode), is_way_roots(AT_FDCWD, path))
GUARDED(int, mkdirat, (int at, const char *path, mode_t mode), (at, path, mode), is_way_roots(at, path))
GUARDED(int, rmdir, (const char *path), (path), is_way_roots(AT_FDCWD, path))
GUARDED(int, mknod, (const char *path, mode_t mode, dev_t device), (path, mode, device), is_way_roots(AT_FDCWD, path))
GUARDED(int, mknodat, (int at, const char *path, mode_t mode, dev_t device), (at, path, mode, device), is_way_roots(at, path))
GUARDED(int, chmod, (const char *path, mode_t mode), (path, mode), is_way_roots(AT_FDCWD, path))
GUARDED(int, fchmodat, (int at, const char *path, mode_t mode, int flags), (at, path, mode, flags), is_way_roots(at, path))
GUARDED(int, fchownat, (int at, const char *path, uid_t owner, gid_t of, int flags), (at, path, owner, of, flags), is_way_roots(at, path))
GUARDED(int, lutimes, (const char *path, const struct timeval times[2]), (path, times), is_way_roots(AT_FDCWD, path))
RETRIED(int, ftruncate, (int fd, off_t size), (fd, size))
RETRIED(int, inotify_add_watch, (int fd, const char *path, uint32_t mask), (fd, path, mask))

/* Both names of those that have one of their own for large files, which are the same on 64-bit machines. */
#define UNDER(name, function) {name, (uintptr_t)(function)}
#define BOTH(name) UNDER(#name, retried_##name), UNDER(#name "64", retried_##name)
#define ONE(name) UNDER(#name, retried_##name)
#define MADE(name) UNDER(#name, guarded_##name)

static bool take_groups(const char *text)
{
	uint64_t number;

	user_groups = calloc(NGROUPS_MAX, sizeof(*user_groups));
	while (user_groups && text && *text && user_group_count < NGROUPS_MAX && parse_list_item(&text, ',', UINT32_MAX - 1, &number))
		user_groups[user_group_count++] = (gid_t)number;
	return user_groups && (!text || !*text);
}

void squashed_root_is(unsigned uid, unsigned gid, const char *groups)
{
	static const struct import all[] = {
		BOTH(open), BOTH(openat), BOTH(stat), BOTH(lstat), BOTH(fstatat), BOTH(statfs), BOTH(ftruncate), ONE(access), ONE(faccessat),
		ONE(readlink), ONE(readlinkat), ONE(chdir), ONE(fchdir), ONE(fchmod), ONE(fchown), MADE(link), MADE(linkat), MADE(unlink),
		MADE(unlinkat), MADE(rename), MADE(mkdir), MADE(mkdirat), MADE(rmdir), MADE(mknod), MADE(mknodat), MADE(chmod), MADE(fchmodat),
		MADE(fchownat), MADE(lutimes), ONE(inotify_add_watch),
	};

	user = uid;
	group = gid;
	if (take_groups(groups))
		imports_replace(all, sizeof(all) / sizeof(all[0]));
}
