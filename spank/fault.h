/*
 * Faults that tests inject. Only a plugin that was built with -DSLURMCKPT_FAULTS (make FAULTS=1) has them, and no
 * installation is: in all others this is the number 0.
 */
#ifndef SLURMCKPT_FAULT_H
#define SLURMCKPT_FAULT_H

#ifdef SLURMCKPT_FAULTS
/*
 * What root has ordered for this place in a file of its name: `crash` and `hang` do not return, `error` gives -1.
 * Without such a file 0.
 */
int fault_at(const char *place);
#else
#define fault_at(place) 0
#endif

#endif
