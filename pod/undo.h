/* What the kernel has to undo of System V semaphores when a process ends (SEM_UNDO, semop(2)): read at a dump, set again at a restore. */
#ifndef SLURMCKPT_UNDO_H
#define SLURMCKPT_UNDO_H

/* Both for each process of a tree that the caller traces and that stands still; `images` is a directory. They write and read the file
 * "semaphore-undo" in it: a line `PID SET NUMBER ADJUSTMENT` for each adjustment, or `PID ?` where it could not be found out. */
void undo_save(int pid, int images);

/* Leaves the file "semaphore-undo.failed" where an adjustment could not be set. */
void undo_restore(int pid, int images);

#endif
