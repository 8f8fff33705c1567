/*
 * What CRIU makes, moves, removes or gives away by its path, as a directory that was deleted, it does as root only where nobody but root can
 * change what is there. Elsewhere it is done as the user: a link that stands in the place of a directory by then would lead it to root's own.
 */
#include "guarded.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "as_user.h"
#include "imports.h"

static bool is_roots_directory(int at, const char *path, int flags, bool may_be_sticky)
{
	struct stat status;

	return !fstatat(at, path, &status, flags) && S_ISDIR(status.st_mode) && !status.st_uid &&
	       (!(status.st_mode & 022) || (may_be_sticky && status.st_mode & S_ISVTX));
}

/*
 * Whether nobody but root can change what `path` leads to. On the way a directory like /tmp will do, as what is root's in there only root can
 * replace; but the last name stands where only root makes names: in /tmp a user may have put something there first.
 */
static bool is_way_roots(int at, const char *path)
{
	const size_t size = strlen(path);
	size_t parent = size;
	char way[PATH_MAX];
	bool roots;

	/* where the name of the last directory on the way ends; 0: it is the first one */
	while (parent > 0 && path[parent - 1] != '/')
		parent--;
	while (parent > 0 && path[parent - 1] == '/')
		parent--;
	roots = size < sizeof(way) && is_roots_directory(at, path[0] == '/' ? "/" : ".", 0, parent > 0);
	if (roots)
		memcpy(way, path, size + 1);
	for (size_t i = 1; roots && i < size; i++) {
		if (way[i] != '/' || way[i - 1] == '/')
			continue;
		way[i] = '\0';
		roots = is_roots_directory(at, way, AT_SYMLINK_NOFOLLOW, i < parent);
		way[i] = '/';
	}
	return roots;
}

/* The call where that is root's, and else as the user, for good. */
#define GUARDED_BY(type, name, parameters, call, as_user, roots)										\
	type guarded_##name parameters														\
	{																	\
		type result = -1;														\
																		\
		if (!as_user_known() || geteuid() || (roots)) {											\
			result = call;														\
		} else if (as_user_begin()) {													\
			result = as_user;													\
			as_user_end();														\
		} else {															\
			errno = EPERM;														\
		}																\
		return result;															\
	}
#define GUARDED(type, name, parameters, arguments, roots) static GUARDED_OUTSIDE(type, name, parameters, arguments, roots)
#define GUARDED_OUTSIDE(type, name, parameters, arguments, roots) GUARDED_BY(type, name, parameters, name arguments, name arguments, roots)

/* There is no way then that anybody could change. */
static bool is_of_descriptor(const char *path, int flags)
{
	return !*path && flags & AT_EMPTY_PATH;
}

/* Of sockets that have one in the file system; of the others nobody asks. */
static bool is_name_roots(const struct sockaddr *name, socklen_t size)
{
	const struct sockaddr_un *local = (const struct sockaddr_un *)name;
	const size_t before = offsetof(struct sockaddr_un, sun_path);
	char path[sizeof(local->sun_path) + 1];

	if (size <= before || name->sa_family != AF_UNIX || !local->sun_path[0])
		return true;
	/* it need not end with a zero byte */
	snprintf(path, sizeof(path), "%.*s", (int)(size - before), local->sun_path);
	return is_way_roots(AT_FDCWD, path);
}

GUARDED_OUTSIDE(int, open, (const char *path, int flags, mode_t mode), (path, flags, mode), is_way_roots(AT_FDCWD, path))
GUARDED_OUTSIDE(int, openat, (int at, const char *path, int flags, mode_t mode), (at, path, flags, mode), is_way_roots(at, path))
GUARDED(int, link, (const char *path, const char *other), (path, other), is_way_roots(AT_FDCWD, path) && is_way_roots(AT_FDCWD, other))
/* What a descriptor refers to, which CRIU links by the descriptor, a user may link by its name in /proc alone: linkat(2), AT_EMPTY_PATH. */
static int link_as_user(int at, const char *path, int to, const char *other, int flags)
{
	char name[32];

	if (*path || !(flags & AT_EMPTY_PATH))
		return linkat(at, path, to, other, flags);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", at);
	return linkat(AT_FDCWD, name, to, other, AT_SYMLINK_FOLLOW);
}
static GUARDED_BY(int, linkat, (int at, const char *path, int to, const char *other, int flags), linkat(at, path, to, other, flags),
	   link_as_user(at, path, to, other, flags), is_way_roots(to, other))
GUARDED(int, symlink, (const char *text, const char *path), (text, path), is_way_roots(AT_FDCWD, path))
GUARDED(int, symlinkat, (const char *text, int at, const char *path), (text, at, path), is_way_roots(at, path))
GUARDED(int, creat, (const char *path, mode_t mode), (path, mode), is_way_roots(AT_FDCWD, path))
GUARDED_OUTSIDE(int, bind, (int fd, const struct sockaddr *name, socklen_t size), (fd, name, size), is_name_roots(name, size))
GUARDED(int, unlink, (const char *path), (path), is_way_roots(AT_FDCWD, path))
GUARDED(int, unlinkat, (int at, const char *path, int flags), (at, path, flags), is_way_roots(at, path))
GUARDED(int, rename, (const char *path, const char *other), (path, other), is_way_roots(AT_FDCWD, path) && is_way_roots(AT_FDCWD, other))
GUARDED(int, mkdir, (const char *path, mode_t mode), (path, mode), is_way_roots(AT_FDCWD, path))
GUARDED(int, mkdirat, (int at, const char *path, mode_t mode), (at, path, mode), is_way_roots(at, path))
GUARDED(int, rmdir, (const char *path), (path), is_way_roots(AT_FDCWD, path))
GUARDED(int, mknod, (const char *path, mode_t mode, dev_t device), (path, mode, device), is_way_roots(AT_FDCWD, path))
GUARDED(int, mknodat, (int at, const char *path, mode_t mode, dev_t device), (at, path, mode, device), is_way_roots(at, path))
GUARDED(int, chmod, (const char *path, mode_t mode), (path, mode), is_way_roots(AT_FDCWD, path))
GUARDED(int, fchmodat, (int at, const char *path, mode_t mode, int flags), (at, path, mode, flags), is_of_descriptor(path, flags) || is_way_roots(at, path))
GUARDED(int, fchownat, (int at, const char *path, uid_t owner, gid_t of, int flags), (at, path, owner, of, flags),
	is_of_descriptor(path, flags) || is_way_roots(at, path))
GUARDED(int, lutimes, (const char *path, const struct timeval times[2]), (path, times), is_way_roots(AT_FDCWD, path))

#define MADE(name) {#name, (uintptr_t)guarded_##name}

void guarded_names(void)
{
	static const struct import all[] = {
		MADE(link), MADE(linkat), MADE(symlink), MADE(symlinkat), MADE(creat), {"creat64", (uintptr_t)guarded_creat}, MADE(unlink),
		MADE(unlinkat), MADE(rename), MADE(mkdir), MADE(mkdirat), MADE(rmdir), MADE(mknod), MADE(mknodat), MADE(chmod), MADE(fchmodat),
		MADE(fchownat), MADE(lutimes),
	};

	imports_replace(all, sizeof(all) / sizeof(all[0]));
}
