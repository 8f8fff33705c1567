#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int program_open(const char *libexec, const char *name, char *why, size_t size)
{
	static const char elf[4] = { 0x7f, 'E', 'L', 'F' };
	char path[SHIM_LIBEXEC_MAX + PROGRAM_NAME_MAX];
	char magic[sizeof(elf)];
	const char *wrong = NULL;
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/%s", libexec, name);
	/* O_NONBLOCK: a FIFO put in its place must not hold the task. */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st) < 0)
		wrong = strerror(errno);
	else if (!S_ISREG(st.st_mode))
		wrong = "not a regular file";
	else if (st.st_uid != 0 || st.st_mode & (S_IWGRP | S_IWOTH))
		wrong = "not owned by root, or writable by others";
	else if (!(st.st_mode & S_IXOTH))
		wrong = "not executable by everybody";
	else if (pread(fd, magic, sizeof(magic), 0) != sizeof(magic) || memcmp(magic, elf, sizeof(elf)) != 0)
		wrong = "not a program";

	if (wrong) {
		snprintf(why, size, "%.200s: %s", path, wrong);
		if (fd >= 0)
			close(fd);
		fd = -1;
	}
	return fd;
}

int shim_path(int fd, char path[SHIM_PATH_MAX], char *why, size_t size)
{
	snprintf(path, SHIM_PATH_MAX, "/proc/self/fd/%d", fd);
	/* access() also fails on a file system mounted noexec, and where /proc is not mounted. */
	if (access(path, X_OK) < 0) {
		snprintf(why, size, "this task cannot execute the task shim: %s", strerror(errno));
		return -1;
	}
	return 0;
}
