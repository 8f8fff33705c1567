#include "allocator.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h> /* optind; getopt.h has a struct option that is not ours */

#include <slurm/spank.h>

#include "options.h"

enum { COMMAND_LINE_MAX = 65536 };

/* sbatch and salloc call slurm_spank_init_post_opt once for each component of a heterogeneous job. */
static int components;

/*
 * Whether environment and command line say --no-requeue, in sbatch's order: the last one wins (_opt_env and
 * process_options_second_pass in its opt.c). The options end at optind, which is that of sbatch itself. What the script
 * says in its #SBATCH lines is not seen here; the job's output tells it then.
 */
static bool requeue_is_forbidden(void)
{
	static char words[COMMAND_LINE_MAX + 1];
	bool forbidden = getenv("SBATCH_NO_REQUEUE") && !getenv("SBATCH_REQUEUE");
	ssize_t length = -1;
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	int index = 0;

	if (fd < 0)
		return forbidden;
	do
		length = read(fd, words, COMMAND_LINE_MAX);
	while (length < 0 && errno == EINTR);
	close(fd);
	for (ssize_t i = 0; i < length && index < optind; i += (ssize_t)strlen(words + i) + 1, index++) {
		if (strcmp(words + i, "--no-requeue") == 0)
			forbidden = true;
		else if (strncmp(words + i, "--requeue", strlen("--requeue")) == 0)
			forbidden = false;
	}
	return forbidden;
}

void allocator_post_opt(void)
{
	components++;
	if (!options_any() || options_off())
		return;
	if (strcmp(program_invocation_short_name, "salloc") == 0) {
		if (components == 1)
			slurm_info("slurmckpt: no checkpoints for this job: only batch jobs (sbatch) can be requeued and "
				   "restored");
	} else if (components == 2) {
		slurm_info("slurmckpt: no checkpoints for this job: heterogeneous jobs are not supported yet");
	} else if (components == 1 && requeue_is_forbidden()) {
		slurm_info("slurmckpt: Slurm will not requeue this job (--no-requeue): its checkpoints will not bring it "
			   "back after the loss of its node");
	}
}
