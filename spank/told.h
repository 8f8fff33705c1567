/*
 * What the job's output says already. The reason for which a job has no checkpoints mostly holds for each of its steps,
 * and a script may start thousands: it is said once.
 */
#ifndef SLURMCKPT_TOLD_H
#define SLURMCKPT_TOLD_H

#include <stdbool.h>

#include <slurm/spank.h>

enum { TOLD_MAX = 320 };

/*
 * Notes in the job's directory that this reason is being told; as root. Returns whether it was noted before. False
 * where there is no such directory: then the script's environment carries the word.
 */
bool told_note(const char *directory, const char *why);

/* Gives the reason that the script's environment says was told, or "", and takes it out for the task. */
void told_take(spank_t spank, char why[TOLD_MAX]);

/* Has the environment of the script say so to the steps that it starts. */
void told_pass_on(spank_t spank, const char *why);

#endif
