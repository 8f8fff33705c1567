/* The connection to the job's coordinator and its first message (docs/architecture.md, "task.sock"). */
#ifndef SLURMCKPT_HELLO_H
#define SLURMCKPT_HELLO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

/* A socket's path is RUN/<job id of at most 10 digits>/task.sock with its NUL. */
enum { HELLO_RUN_MAX = sizeof(((struct sockaddr_un *)0)->sun_path) - sizeof("/4294967295/task.sock") };

struct hello {
	uint32_t job;
	uint32_t step;   /* Slurm's number; 4294967291 is the batch script */
	uint32_t task;   /* local task id */
	uint32_t gtask;  /* global task id */
	uint32_t ntasks; /* tasks of this step on this node */
	uint32_t nnodes; /* nodes of this step */
	uint32_t uid;
	uint32_t gid;
	int32_t launch;  /* of the batch script; or LAUNCH_NONE */
	bool off;        /* the task will not be wrapped: its user has switched checkpoints off */
};

/*
 * Connects to RUN/<job>/task.sock as root and sends HELLO, with the descriptor `anchor` unless it is -1; waits for
 * nothing but a place in the listen queue, and not long for that. Returns the socket, close-on-exec, or -1 with the
 * reason in why.
 */
int hello_connect(const char *run, const struct hello *hello, int anchor, char *why, size_t size);

#endif
