#include "namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

int namespace_open(pid_t pid, const char *name, struct reason *reason)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/ns/%s", pid, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd >= 0 ? fd : refuse(reason, "cannot open %s: %s", path, strerror(errno));
}

bool namespace_is_own(int fd, const char *name)
{
	struct stat theirs, own;
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/ns/%s", name);
	return !fstat(fd, &theirs) && !stat(path, &own) && theirs.st_dev == own.st_dev && theirs.st_ino == own.st_ino;
}

bool namespace_has_own_owner(int fd)
{
	int owner = ioctl(fd, NS_GET_USERNS);
	bool result = false;

	/* An owner that is not above us cannot be opened (EPERM): it is not ours either. */
	if (owner >= 0) {
		result = namespace_is_own(owner, "user");
		close(owner);
	}
	return result;
}

int namespace_join(int fd, const char *name, struct reason *reason)
{
	return setns(fd, 0) ? refuse(reason, "cannot join the %s namespace: %s", name, strerror(errno)) : 0;
}

static int mount_shm(const char *directory, struct reason *reason)
{
	if (mount(directory, "/dev/shm", NULL, MS_BIND, NULL))
		return refuse(reason, "cannot bind %s over /dev/shm: %s", directory, strerror(errno));
	/* the flags that /dev/shm has everywhere, and not those of the directory's file system (/run is often noexec) */
	if (mount(NULL, "/dev/shm", NULL, MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NODEV, NULL))
		return refuse(reason, "cannot set the mount flags of /dev/shm: %s", strerror(errno));
	return 0;
}

/* What the node mounts later still arrives, what is mounted here stays here. */
static int make_slaves(struct reason *reason)
{
	return mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) ? refuse(reason, "cannot make mounts slaves: %s", strerror(errno)) : 0;
}

int namespace_shm(const char *shm_dir, struct reason *reason)
{
	if (unshare(CLONE_NEWNS))
		return refuse(reason, "cannot create a mount namespace: %s", strerror(errno));
	return make_slaves(reason) || mount_shm(shm_dir, reason) ? -1 : 0;
}

int namespace_mounts(const char *shm_dir, struct reason *reason)
{
	const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;

	if (make_slaves(reason))
		return -1;
	if (mount("proc", "/proc", "proc", flags, NULL))
		return refuse(reason, "cannot mount /proc: %s", strerror(errno));
	if (shm_dir && mount_shm(shm_dir, reason))
		return -1;
	/* of the new IPC namespace; not every node has the directory, nor every kernel the file system */
	if (mount("mqueue", "/dev/mqueue", "mqueue", flags, NULL) && errno != ENOENT && errno != ENODEV)
		return refuse(reason, "cannot mount /dev/mqueue: %s", strerror(errno));
	return 0;
}

bool namespace_bind_is_valid(const char *text)
{
	const char *colon = strchr(text, ':');

	return text[0] == '/' && colon && colon - text < PATH_MAX && colon[1] == '/' && !strchr(colon + 1, ':');
}

int namespace_bind(const char *text, struct reason *reason)
{
	const char *target = strchr(text, ':') + 1;
	char source[PATH_MAX];

	snprintf(source, sizeof(source), "%.*s", (int)(target - 1 - text), text);
	if (mount(source, target, NULL, MS_BIND | MS_REC, NULL))
		return refuse(reason, "cannot bind %.200s over %.200s: %s", source, target, strerror(errno));
	return 0;
}
