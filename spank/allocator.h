/* Allocator context: sbatch and salloc. What is known of a job's fate at its submission, said there. */
#ifndef SLURMCKPT_ALLOCATOR_H
#define SLURMCKPT_ALLOCATOR_H

/*
 * All options of one component of the job are known. Says in one line when checkpoints were asked for that this job
 * cannot have, or cannot use. Never an error: the job is submitted all the same.
 */
void allocator_post_opt(void);

#endif
