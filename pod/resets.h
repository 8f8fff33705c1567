/* Restored TCP connections are not reset because their other ends do not exist, or do not exist yet. */
#ifndef SLURMCKPT_RESETS_H
#define SLURMCKPT_RESETS_H

/* From now on a connection that this program repairs (TCP_REPAIR) takes no reset, until somebody takes the filter from its socket that says
 * so (slurmckpt.capture.resets). */
void resets_ignore(void);

#endif
