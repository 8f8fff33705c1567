/* Part of a plugin with FAULTS=1 only. */
#include "fault.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DIRECTORY "/run/slurmckpt-faults"

int fault_at(const char *place)
{
	char path[128], order[16] = "";
	FILE *file;

	snprintf(path, sizeof(path), DIRECTORY "/plugin.%s", place);
	file = fopen(path, "re");
	if (file) {
		if (!fgets(order, sizeof(order), file))
			order[0] = '\0';
		fclose(file);
	}
	if (!strcmp(order, "crash\n"))
		abort();
	while (!strcmp(order, "hang\n"))
		pause();
	return strcmp(order, "error\n") ? 0 : -1;
}
