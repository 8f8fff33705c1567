#include "args.h"

#include <string.h>

#include <slurm/spank.h>

#include "hello.h"
#include "shim.h"

#define DEFAULT_RUN "/run/slurmckpt"
#define DEFAULT_LIBEXEC "/usr/libexec/slurmckpt"

/* The value of `key=value` when argument has that key, else NULL. */
static const char *value_of(const char *argument, const char *key)
{
	size_t length = strlen(key);

	return strncmp(argument, key, length) == 0 && argument[length] == '=' ? argument + length + 1 : NULL;
}

void args_parse(int argc, char *argv[], bool report, struct plugin_args *args)
{
	*args = (struct plugin_args){ .run = DEFAULT_RUN, .libexec = DEFAULT_LIBEXEC };
	for (int i = 0; i < argc; i++) {
		const char *run = value_of(argv[i], "run");
		const char *libexec = value_of(argv[i], "libexec");

		if (run && run[0] == '/' && strlen(run) <= HELLO_RUN_MAX)
			args->run = run;
		else if (libexec && libexec[0] == '/' && strlen(libexec) <= SHIM_LIBEXEC_MAX)
			args->libexec = libexec;
		else if (report)
			slurm_error("slurmckpt: plugstack.conf: argument '%s' ignored; accepted: run=DIR (absolute, at most "
				    "%d characters), libexec=DIR (absolute)",
				    argv[i], HELLO_RUN_MAX);
	}
}
