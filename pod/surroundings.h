/*
 * What a program of ours that stands beside a task is told about its place when it is executed:
 * --control FD --shim-pid PID [--cgroup FILE]... [--shm DIR]
 */
#ifndef SLURMCKPT_SURROUNDINGS_H
#define SLURMCKPT_SURROUNDINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "reason.h"

struct surroundings {
	int control;		/* connection to the coordinator */
	pid_t shim;		/* of the task */
	char **cgroups;		/* as many as argv has at most */
	size_t cgroup_count;
	const char *shm;	/* or NULL */
};

/* For getopt_long: all of these have val SURROUNDINGS_OPTION. */
#define SURROUNDINGS_OPTION 0x100
#define SURROUNDINGS_OPTIONS                                        \
	{"control", required_argument, NULL, SURROUNDINGS_OPTION},  \
	{"shim-pid", required_argument, NULL, SURROUNDINGS_OPTION}, \
	{"cgroup", required_argument, NULL, SURROUNDINGS_OPTION},   \
	{"shm", required_argument, NULL, SURROUNDINGS_OPTION}

/* To be called first, with main's argc. */
int surroundings_open(struct surroundings *surroundings, int argc, struct reason *reason);
void surroundings_close(struct surroundings *surroundings);
/* One of the options, by its name without the dashes. */
int surroundings_take(struct surroundings *surroundings, const char *name, char *value, struct reason *reason);
/* Whether all that is needed has come; `usage` says what that is. */
int surroundings_complete(const struct surroundings *surroundings, const char *usage, struct reason *reason);

/* Joins cgroups and mount namespace of the shim, and takes over what context_adopt says. As root. */
int surroundings_adopt(const struct surroundings *surroundings, struct reason *reason);

#endif
