/* The plugin's arguments in plugstack.conf. */
#ifndef SLURMCKPT_ARGS_H
#define SLURMCKPT_ARGS_H

#include <stdbool.h>

struct plugin_args {
	const char *run;     /* directory of the jobs' run directories: `run=` */
	const char *libexec; /* directory that holds `shim`: `libexec=` */
};

/*
 * Reads the arguments; the strings live as long as argv. An unknown or wrong argument is left out and the default
 * holds: nothing an administrator mistypes may stop a job. With report, it is named in one line of Slurm's log.
 */
void args_parse(int argc, char *argv[], bool report, struct plugin_args *args);

#endif
