/* System calls that a freeze has interrupted start again. */
#ifndef SLURMCKPT_RESTART_H
#define SLURMCKPT_RESTART_H

/* Called by the tracer for each process of the tree, when all of it is stopped and nothing has been injected yet. A failure changes nothing, so it
 * is none: 0, or -ENOTSUP on another kind of machine. */
int restart_interrupted(int pid);

#endif
