/* A program of which nothing is left when it has ended, whatever it has started. */
#ifndef SLURMCKPT_WHOLE_H
#define SLURMCKPT_WHOLE_H

#include <stdbool.h>
#include <sys/types.h>

/* What the descendants of this process leave behind becomes its children. Before the program is forked. */
bool whole_begin(void);

/*
 * Waits for the end of `program`, a child, or for SIGTERM; then kills all children, and theirs. Returns the raw wait status of the program;
 * that of SIGTERM where that came first. SIGCHLD and SIGTERM must be blocked.
 */
int whole_wait(pid_t program);

#endif
