/*
 * The payload: everything a task is made of, written by its shim into a sealed memfd and read where the task is started. It is the user's
 * data, so it is read only by a process that has the user's rights and no others.
 */
#ifndef SLURMCKPT_PAYLOAD_H
#define SLURMCKPT_PAYLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "reason.h"
#include "signals.h"

/* The kernel takes at most 6 MiB of arguments and environment (fs/exec.c, bprm_stack_limits); the header needs far less than the rest. */
#define PAYLOAD_MAX_BYTES (8 * 1024 * 1024)
/* A message carries 253 descriptors: these, the payload, the held output, two relayed streams, a shim's connection and some to spare. */
#define PAYLOAD_MAX_FDS 240
/* CPU masks of up to 16384 CPUs; Linux is built for at most 8192. */
#define PAYLOAD_MAX_AFFINITY 2048

struct payload {
	char **argv;	/* NULL at the end */
	char **envp;	/* NULL at the end */
	const char *cwd;
	mode_t umask;
	int fds[PAYLOAD_MAX_FDS];
	size_t fd_count;
	bool has_nice;
	int nice;
	unsigned char affinity[PAYLOAD_MAX_AFFINITY];
	size_t affinity_size;	/* bytes; 0: not stated */
	signal_mask ignored;
	signal_mask blocked;
	bool has_limit[RLIM_NLIMITS];
	struct rlimit limits[RLIM_NLIMITS];
	char *bytes;		/* what the pointers above point into */
};

/* What a shim adds to what it can see of itself. */
struct payload_source {
	char **argv;
	char **envp;
	const int *fds;
	size_t fd_count;
	const int *relays;	/* of those, the ones whose output a relay passes on */
	size_t relay_count;
	signal_mask ignored;
	signal_mask blocked;
};

/* A sealed memfd (3 or above, close-on-exec), or -1 with the reason. */
int payload_write(const struct payload_source *source, struct reason *reason);

/* 0, or -1 with the reason. Whatever is returned, payload may be given to payload_free. */
int payload_read(int fd, struct payload *payload, struct reason *reason);

/* The same from memory; bytes must come from malloc and belong to payload from here on. */
int payload_parse(char *bytes, size_t size, struct payload *payload, struct reason *reason);

void payload_free(struct payload *payload);

#endif
