/*
 * Why in two callbacks. Root's part (connect, HELLO, open the shim) is done in task_init_privileged. The decision falls
 * in task_init, for three reasons found in slurmstepd (mgr.c, task.c):
 * - a container plugin such as pyxis enters the container in its own task_init: only there can it be seen, by every
 *   plugin that stands after it in plugstack.conf;
 * - descriptor 2 is the stderr of this very task there. In task_init_privileged it is still slurmstepd's, which is
 *   that of the node's first task (_slurmd_job_log_init; io_dup_stdio comes later), for batch and srun steps alike;
 * - words that another plugin puts in front of the task come between our shim and the task when ours are put last.
 * A task that is not wrapped after all closes its connection: the coordinator reads end of file after HELLO.
 */
#include "remote.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "anchor.h"
#include "hello.h"
#include "launch.h"
#include "options.h"
#include "origin.h"
#include "say.h"
#include "shim.h"
#include "told.h"

/* Of slurm.h, which spank.h does not include. */
#define STEP_BATCH UINT32_C(0xfffffffb)
#define STEP_EXTERN UINT32_C(0xfffffffc)
#define STEP_INTERACTIVE UINT32_C(0xfffffffa)

#define LOG_FILE "/var/log/slurmckpt.log"

/* Slurm has it since 23.11. Weak: where it is missing, it must not be called. */
extern spank_err_t spank_prepend_task_argv(spank_t spank, int argc, const char *argv[]) __attribute__((weak));

/* slurmstepd's own; each task inherits the copy. */
static struct origin stepd_origin;

/* From task_init_privileged to task_init of one task, which is a process of its own. */
static struct {
	bool wanted;          /* this task should be wrapped */
	bool batch;           /* it is the batch script */
	bool noted;           /* why stands in the job's output, as a step before this one has noted */
	int sock;             /* connected, HELLO sent; or -1 */
	int shim;             /* the shim's binary; or -1 */
	char why[TOLD_MAX];   /* why it cannot be wrapped; empty when it can */
	char told[TOLD_MAX];  /* what the script was told; empty for nothing */
} task = { .sock = -1, .shim = -1 };

void remote_init(void)
{
	stepd_origin = origin_now();
}

/*
 * Containers are not supported yet: a task in one runs unwrapped. This is the place to change when they are.
 * Returns true with the reason in task.why.
 */
static bool in_container(spank_t spank)
{
	struct origin now = origin_now();
	char value[2] = "";
	spank_err_t err;

	if (!origin_equal(&now, &stepd_origin)) {
		snprintf(task.why, sizeof(task.why), "the task runs in a container (another root directory or user namespace)");
		return true;
	}
	/* --container: Slurm builds the OCI bundle from the task's argv, after this. Too long for value is set too. */
	err = spank_getenv(spank, "SLURM_CONTAINER", value, sizeof(value));
	if (err != ESPANK_ENV_NOEXIST && value[0] != '\0') {
		snprintf(task.why, sizeof(task.why), "the step runs in an OCI container (--container)");
		return true;
	}
	return false;
}

static bool read_hello(spank_t spank, struct hello *hello)
{
	uid_t uid;
	gid_t gid;
	int id;

	if (spank_get_item(spank, S_JOB_ID, &hello->job) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_STEPID, &hello->step) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_ID, &id) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_TASK_GLOBAL_ID, &hello->gtask) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &hello->ntasks) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_NNODES, &hello->nnodes) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_UID, &uid) != ESPANK_SUCCESS ||
	    spank_get_item(spank, S_JOB_GID, &gid) != ESPANK_SUCCESS)
		return false;
	/* slurmstepd leaves it 0 for the batch script (seen with 26.05.5), which runs on one node. */
	if (hello->nnodes == 0)
		hello->nnodes = 1;
	hello->task = (uint32_t)id;
	hello->uid = uid;
	hello->gid = gid;
	return true;
}

/* The script's srun waits for a step that the coordinator would never see: it must not wait for this one. */
static void tell_off(const char *run, struct hello *hello)
{
	char why[sizeof(task.why)];
	int sock;

	hello->off = true;
	/* What fails here is nothing to the task, which runs without checkpoints as it was asked to. */
	sock = hello_connect(run, hello, -1, why, sizeof(why));
	if (sock >= 0)
		close(sock);
}

void remote_task_init_privileged(spank_t spank, const struct plugin_args *args)
{
	struct hello hello = { .launch = launch_take(spank) };
	char directory[HELLO_RUN_MAX + sizeof("/4294967295")];
	bool off = options_off();
	int anchor = -1;

	told_take(spank, task.told);
	if (off && hello.launch == LAUNCH_NONE)
		return;
	if (!read_hello(spank, &hello)) {
		/* Not seen to happen; without the numbers there is nothing to ask for. */
		slurm_info("slurmckpt: slurmstepd does not name this task");
		return;
	}
	if (hello.step == STEP_EXTERN || hello.step == STEP_INTERACTIVE)
		return;
	snprintf(directory, sizeof(directory), "%s/%u", args->run, hello.job);
	if ((off || !options_any()) && access(directory, F_OK) < 0)
		return;
	if (off) {
		tell_off(args->run, &hello);
		return;
	}

	task.wanted = true;
	task.batch = hello.step == STEP_BATCH;
	if (in_container(spank))
		return;
	task.shim = program_open(args->libexec, "shim", task.why, sizeof(task.why));
	if (task.shim < 0)
		goto out;
	/* One for the step; only now is there somebody with root's rights below slurmstepd. */
	if (hello.task == 0)
		anchor = anchor_start(args->libexec);
	task.sock = hello_connect(args->run, &hello, anchor, task.why, sizeof(task.why));
	/* What the task becomes is the user's: it must not have this. */
	if (anchor >= 0)
		close(anchor);

out:
	/* The task that says it notes it. */
	if (task.why[0] != '\0' && hello.task == 0)
		task.noted = told_note(directory, task.why);
}

/* Puts the shim in front of the task. Returns 0, or -1 with the reason in task.why. */
static int wrap(spank_t spank)
{
	char path[SHIM_PATH_MAX];
	char sock[16];
	const char *argv[] = { path, "slurmckpt-shim", sock };
	spank_err_t err;

	if (!spank_prepend_task_argv) {
		snprintf(task.why, sizeof(task.why), "this Slurm cannot put a program in front of a task (needs 23.11 or newer)");
		return -1;
	}
	if (shim_path(task.shim, path, task.why, sizeof(task.why)) < 0)
		return -1;
	snprintf(sock, sizeof(sock), "%d", task.sock);
	if (fcntl(task.sock, F_SETFD, 0) < 0) {
		snprintf(task.why, sizeof(task.why), "socket: %s", strerror(errno));
		return -1;
	}
	err = spank_prepend_task_argv(spank, 3, argv);
	if (err != ESPANK_SUCCESS) {
		snprintf(task.why, sizeof(task.why), "spank_prepend_task_argv: %s", spank_strerror(err));
		return -1;
	}
	return 0;
}

/* One line for each node in slurmd's log, and one in the job's own output, unless it is there already. */
static void report(spank_t spank)
{
	char node[256] = "";
	char text[448];
	uint32_t nodeid = 0;
	int id = 0;

	spank_get_item(spank, S_TASK_ID, &id);
	spank_get_item(spank, S_JOB_NODEID, &nodeid);
	if (id != 0)
		return;
	/* slurmstepd sets it before task_init, over whatever the user had. */
	if (spank_getenv(spank, "SLURMD_NODENAME", node, sizeof(node)) != ESPANK_SUCCESS)
		gethostname(node, sizeof(node) - 1);
	snprintf(text, sizeof(text), "no checkpoints for this step: %s; see " LOG_FILE " on %.64s", task.why, node);
	slurm_info("slurmckpt: %s", text);
	if (nodeid == 0 && (task.batch || (!task.noted && strcmp(task.told, task.why) != 0)))
		say(text);
	if (task.batch)
		told_pass_on(spank, task.why);
}

void remote_task_init(spank_t spank)
{
	if (!task.wanted)
		return;
	if (task.why[0] == '\0' && !in_container(spank) && wrap(spank) == 0)
		return;

	if (task.sock >= 0)
		close(task.sock);
	if (task.shim >= 0)
		close(task.shim);
	anchor_reap();
	report(spank);
}
