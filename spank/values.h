/* What the value of each option may be. Knows nothing of Slurm's API. */
#ifndef SLURMCKPT_VALUES_H
#define SLURMCKPT_VALUES_H

#include <stdbool.h>
#include <stdint.h>

enum interval_kind {
	INTERVAL_FIXED,  /* every `seconds` */
	INTERVAL_AUTO,   /* the coordinator chooses */
	INTERVAL_OFF,    /* no checkpoints */
	INTERVAL_MANUAL, /* never by the timer, only on request */
};

struct interval {
	enum interval_kind kind;
	int64_t seconds; /* 0 unless kind is INTERVAL_FIXED */
};

bool interval_parse(const char *text, struct interval *interval);

bool valid_interval(const char *text);
bool valid_dir(const char *text);     /* absolute, no control character, shorter than PATH_MAX */
bool valid_keep(const char *text);    /* 1 to 1000 */
bool valid_recover(const char *text); /* comma list of the events below */
bool valid_model(const char *text);   /* 1 to 255 printable ASCII characters, no blank */
bool valid_command(const char *text); /* 1 to 1000 bytes, no control character, not blanks alone */

#define ACCEPTED_INTERVAL                                                                                              \
	"90s, 10m, 1h30m, 2d, any form of --time (M, M:S, H:M:S, D-H, D-H:M, D-H:M:S) from 1 second to 3650 days, "    \
	"infinite, auto or off"
#define ACCEPTED_DIR "an absolute path without control characters"
#define ACCEPTED_KEEP "a whole number from 1 to 1000"
#define ACCEPTED_RECOVER "a comma list of nodefail, preempt, crash, hang, timelimit"
#define ACCEPTED_MODEL "1 to 255 printable ASCII characters without blanks"
#define ACCEPTED_COMMAND "a command of 1 to 1000 bytes without control characters"

#endif
