/* Why something failed, as one line for a person. */
#ifndef SLURMCKPT_REASON_H
#define SLURMCKPT_REASON_H

struct reason {
	char text[512];
};

/* Writes the reason and returns -1, so that a failing function can end with `return refuse(reason, ...)`. */
int refuse(struct reason *reason, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
