/* The process that the pods of a step stand below (pod/anchor.c), started while this task is still root's. */
#ifndef SLURMCKPT_ANCHOR_H
#define SLURMCKPT_ANCHOR_H

/*
 * Starts LIBEXEC/anchor as a child of this process, and so of what it becomes. Returns the coordinator's end of its
 * connection, close-on-exec, or -1: then pods stand outside Slurm's process tree, which is no reason to go without
 * checkpoints.
 */
int anchor_start(const char *libexec);

/* For a task that is not wrapped after all: the program must not find a child that it did not make. */
void anchor_reap(void);

#endif
