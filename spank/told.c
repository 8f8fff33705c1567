#include "told.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define VARIABLE "SLURM_CKPT_TOLD"

bool told_note(const char *directory, const char *why)
{
	char path[256];
	char before[TOLD_MAX] = "";
	size_t length = strlen(why);
	bool told = false;
	int size = snprintf(path, sizeof(path), "%s/told", directory);
	int fd = -1;

	if (size < 0 || (size_t)size >= sizeof(path))
		goto out;
	fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 || read(fd, before, sizeof(before) - 1) < 0)
		goto out;
	told = strcmp(before, why) == 0;
	/* What is not noted is told again. */
	if (!told && ftruncate(fd, 0) == 0 && pwrite(fd, why, length, 0) != (ssize_t)length)
		goto out;

out:
	if (fd >= 0)
		close(fd);
	return told;
}

void told_take(spank_t spank, char why[TOLD_MAX])
{
	why[0] = '\0';
	if (spank_getenv(spank, VARIABLE, why, TOLD_MAX) == ESPANK_ENV_NOEXIST)
		return;
	spank_unsetenv(spank, VARIABLE);
}

void told_pass_on(spank_t spank, const char *why)
{
	spank_setenv(spank, VARIABLE, why, 1);
}
