/* On which memory nodes threads get their memory (set_mempolicy(2), numactl(8)): read at a dump, set again at a restore. */
#ifndef SLURMCKPT_POLICY_H
#define SLURMCKPT_POLICY_H

/* Both for each process of a tree that the caller traces and that stands still; `images` is a directory. They write and read the file
 * "memory-policy" in it: a line `TID MODE MASK...` (16 words in hexadecimal digits) for each thread whose policy is not the usual one. What cannot
 * be set, as where the node has other memory nodes or Slurm has given others, is left as it is. */
void policy_save(int pid, int images);
void policy_restore(int pid, int images);

#endif
