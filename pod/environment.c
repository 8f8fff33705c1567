#include "environment.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* more than the kernel takes of arguments and environment (fs/exec.c, bprm_stack_limits) */
#define MAX_BYTES (8 * 1024 * 1024)

static int read_all(int fd, char *bytes, size_t size)
{
	size_t done = 0;

	while (done < size) {
		ssize_t got = pread(fd, bytes + done, size - done, (off_t)done);

		if (got == 0)
			errno = EIO;
		if (got <= 0)
			return -1;
		done += (size_t)got;
	}
	return 0;
}

int environment_adopt(int fd, struct reason *reason)
{
	char *bytes = NULL, **strings = NULL;
	size_t size, count = 0;
	struct stat status;

	if (fstat(fd, &status))
		return refuse(reason, "cannot read the environment: %s", strerror(errno));
	if (status.st_size > MAX_BYTES)
		return refuse(reason, "the environment has more than %d bytes", MAX_BYTES);
	size = (size_t)status.st_size;
	bytes = malloc(size + 1);
	/* every string takes at least its end */
	strings = calloc(size + 1, sizeof(*strings));
	if (!bytes || !strings || read_all(fd, bytes, size)) {
		refuse(reason, "cannot read the environment: %s", strerror(errno));
		free(bytes);
		free(strings);
		return -1;
	}
	bytes[size] = '\0';
	for (char *string = bytes; string < bytes + size; string += strlen(string) + 1)
		strings[count++] = string;
	/* both are the process's from here on */
	environ = strings;
	return 0;
}
