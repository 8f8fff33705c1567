/*
 * slurmckpt's SPANK plugin: the entry points that Slurm calls, each handed to the file of its context. None of them
 * ever returns an error: a job must run, with checkpoints or without. Only a wrong value of an option stops a
 * submission, in the option's own callback (options.c).
 *
 * Tasks with a PMI2 or PMIx connection need nothing here: slurmstepd's MPI plugin passes it by descriptor and
 * environment, and both reach the shim unchanged. Whether such a task can be captured is the coordinator's question.
 */
#include <stdbool.h>

#include <slurm/spank.h>

#include "allocator.h"
#include "args.h"
#include "fault.h"
#include "local.h"
#include "options.h"
#include "remote.h"

SPANK_PLUGIN(slurmckpt, 1)

int slurm_spank_init(spank_t spank, int argc, char *argv[])
{
	struct plugin_args args;

	options_register(spank);
	/* slurmd reports wrong arguments, once when it starts; users of srun cannot change plugstack.conf. */
	if (spank_context() == S_CTX_SLURMD)
		args_parse(argc, argv, true, &args);
	else if (spank_context() == S_CTX_REMOTE)
		remote_init();
	return spank_context() == S_CTX_REMOTE ? fault_at("init") : 0;
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char *argv[])
{
	(void)spank;
	(void)argc;
	(void)argv;
	if (spank_context() == S_CTX_LOCAL)
		local_post_opt();
	else if (spank_context() == S_CTX_ALLOCATOR)
		allocator_post_opt();
	return spank_context() == S_CTX_REMOTE ? fault_at("init_post_opt") : 0;
}

int slurm_spank_task_init_privileged(spank_t spank, int argc, char *argv[])
{
	struct plugin_args args;

	args_parse(argc, argv, false, &args);
	remote_task_init_privileged(spank, &args);
	return fault_at("task_init_privileged");
}

int slurm_spank_task_init(spank_t spank, int argc, char *argv[])
{
	(void)argc;
	(void)argv;
	remote_task_init(spank);
	return fault_at("task_init");
}
