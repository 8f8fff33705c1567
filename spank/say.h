/* One line on the task's own stderr. */
#ifndef SLURMCKPT_SAY_H
#define SLURMCKPT_SAY_H

/*
 * Writes "slurmckpt: TEXT" and a newline to descriptor 2 in one write. Never blocks, never raises SIGPIPE: the line is
 * lost when it cannot be taken at once.
 */
void say(const char *text);

#endif
