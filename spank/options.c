#include "options.h"

#include <stddef.h>

#include "local.h"
#include "values.h"

static int callback(int val, const char *optarg, int remote);

/*
 * Slurm prints options in two columns, the second from column 30 on: a name with its argument must be shorter than
 * that to share the line with its text. Hence the one-letter arguments.
 */
static struct {
	struct spank_option spank;
	bool (*valid)(const char *text);
	const char *accepted;
} table[OPTION_COUNT] = {
	[OPTION_INTERVAL] = { { "checkpoint-interval", "T",
				"take a group checkpoint of all ranks every T: 90s, 10m, 1h30m, 2d or any form of --time; "
				"infinite: only on request; auto: as often as pays; off: never",
				1, OPTION_INTERVAL, callback },
			      valid_interval, ACCEPTED_INTERVAL },
	[OPTION_DIR] = { { "checkpoint-dir", "PATH",
			   "keep the checkpoints below PATH, absolute and shared by all nodes", 1, OPTION_DIR,
			   callback },
			 valid_dir, ACCEPTED_DIR },
	[OPTION_KEEP] = { { "checkpoint-keep", "N", "keep the newest N checkpoints (1 to 1000)", 1, OPTION_KEEP,
			    callback },
			  valid_keep, ACCEPTED_KEEP },
	[OPTION_RECOVER] = { { "checkpoint-recover", "L",
			       "restore the job after these events, a comma list of nodefail, preempt, crash, hang, "
			       "timelimit",
			       1, OPTION_RECOVER, callback },
			     valid_recover, ACCEPTED_RECOVER },
	[OPTION_MODEL] = { { "checkpoint-model", "ID",
			     "name and version of the model; a checkpoint is restored only under the same ID", 1,
			     OPTION_MODEL, callback },
			   valid_model, ACCEPTED_MODEL },
	[OPTION_FRESH] = { { "checkpoint-fresh", NULL,
			     "do not restore an earlier checkpoint: start the job from its beginning", 0,
			     OPTION_FRESH, callback },
			   NULL, NULL },
	[OPTION_PRE] = { { "checkpoint-pre", "CMD",
			   "run CMD in the job, by sh, before each checkpoint; when it fails, there is none", 1,
			   OPTION_PRE, callback },
			 valid_command, ACCEPTED_COMMAND },
	[OPTION_POST] = { { "checkpoint-post", "CMD", "run CMD in the job, by sh, after each checkpoint", 1,
			    OPTION_POST, callback },
			  valid_command, ACCEPTED_COMMAND },
	[OPTION_RESTORED] = { { "checkpoint-restored", "C",
				"run C in the job, by sh, when it has been restored and runs again", 1,
				OPTION_RESTORED, callback },
			      valid_command, ACCEPTED_COMMAND },
};

/* A SPANK option callback is given no handle to hang this on. One process serves one job or one step. */
static bool any_given;
static bool interval_off;

/* A copy of a user's text that is safe to print on one line. */
static const char *printable(const char *text, char *buffer, size_t size)
{
	size_t i = 0;

	for (; i < size - 1 && text[i] != '\0'; i++)
		buffer[i] = text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
	buffer[i] = '\0';
	return buffer;
}

/*
 * Slurm calls this any number of times for one option (environment, script, command line); the last call wins.
 * remote says that this is slurmstepd: nothing is refused there, because that would fail the user's task.
 */
static int callback(int val, const char *optarg, int remote)
{
	const char *text = optarg ? optarg : "";
	struct interval interval;
	char shown[81];

	if (val < 0 || val >= OPTION_COUNT)
		return 0;
	if (!remote && table[val].valid && !table[val].valid(text)) {
		slurm_error("--%s=%s is not accepted; accepted: %s", table[val].spank.name,
			    printable(text, shown, sizeof(shown)), table[val].accepted);
		return -1;
	}
	any_given = true;
	if (val == OPTION_INTERVAL)
		interval_off = interval_parse(text, &interval) && interval.kind == INTERVAL_OFF;
	if (spank_context() == S_CTX_LOCAL)
		local_option_given((enum option)val, text);
	return 0;
}

void options_register(spank_t spank)
{
	for (int i = 0; i < OPTION_COUNT; i++) {
		if (spank_option_register(spank, &table[i].spank) != ESPANK_SUCCESS)
			slurm_error("slurmckpt: option --%s could not be registered", table[i].spank.name);
	}
}

const char *options_name(enum option option)
{
	return table[option].spank.name;
}

bool options_any(void)
{
	return any_given;
}

bool options_off(void)
{
	return interval_off;
}
