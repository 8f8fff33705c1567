#include "surroundings.h"

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cgroup.h"
#include "context.h"
#include "message.h"
#include "number.h"

int surroundings_open(struct surroundings *surroundings, int argc, struct reason *reason)
{
	*surroundings = (struct surroundings){.control = -1};
	surroundings->cgroups = calloc((size_t)argc, sizeof(*surroundings->cgroups));
	return surroundings->cgroups ? 0 : refuse(reason, "out of memory");
}

void surroundings_close(struct surroundings *surroundings)
{
	free(surroundings->cgroups);
	surroundings->cgroups = NULL;
}

int surroundings_take(struct surroundings *surroundings, const char *name, char *value, struct reason *reason)
{
	uint64_t number;

	if (!strcmp(name, "control")) {
		if (!parse_number(value, 10, INT_MAX, &number) || number < 3)
			return refuse(reason, "--control %s is not a descriptor above 2", value);
		surroundings->control = (int)number;
	} else if (!strcmp(name, "shim-pid")) {
		if (!parse_number(value, 10, INT_MAX, &number) || number < 2)
			return refuse(reason, "--shim-pid %s is not the pid of a task shim", value);
		surroundings->shim = (pid_t)number;
	} else if (!strcmp(name, "cgroup")) {
		surroundings->cgroups[surroundings->cgroup_count++] = value;
	} else {
		surroundings->shm = value;
	}
	return 0;
}

int surroundings_complete(const struct surroundings *surroundings, const char *usage, struct reason *reason)
{
	if (surroundings->control < 0 || surroundings->shim == 0)
		return refuse(reason, "usage: %s", usage);
	if (!message_is_socket(surroundings->control))
		return refuse(reason, "--control %d is not a SOCK_SEQPACKET socket", surroundings->control);
	return 0;
}

int surroundings_adopt(const struct surroundings *surroundings, struct reason *reason)
{
	/* groups first: their paths belong to the mount namespace of the coordinator */
	for (size_t i = 0; i < surroundings->cgroup_count; i++) {
		if (cgroup_join(surroundings->cgroups[i], reason))
			return -1;
	}
	return context_adopt(surroundings->shim, reason);
}
