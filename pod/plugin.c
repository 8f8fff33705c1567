/*
 * restart.so: what CRIU loads of ours (criu.org/Plugins), as its criu-plugin.h of version 0.2 has it. At a dump it has interrupted calls start
 * again (restart.c), and notes what semaphores have to undo (undo.c) and where threads get their memory (policy.c), which it sets again at a
 * restore. There it gives unix sockets the job's user for their peers (peers.c) and pipes for their owner (pipes.c), whom SLURMCKPT_USER=UID:GID
 * names, and keeps resets from TCP connections (resets.c). Where root may not reach a file, CRIU does it as this user, with the groups of
 * SLURMCKPT_GROUPS=1,2,3 (squashed.c), and so it does where the user could lead root to what is not the user's (guarded.c).
 */
#include <stdint.h>
#include <stdlib.h>

#include "as_user.h"
#include "guarded.h"
#include "number.h"
#include "peers.h"
#include "pipes.h"
#include "policy.h"
#include "resets.h"
#include "restart.h"
#include "squashed.h"
#include "undo.h"

enum { STAGE_RESTORE = 2 };
enum { RESUME_DEVICES_LATE = 9, CHECKPOINT_DEVICES = 11, HOOKS };

/* CRIU's: the directory of the images. Not there in a test. */
int criu_get_image_dir(void) __attribute__((weak));

static int begin(int stage)
{
	const char *text = getenv("SLURMCKPT_USER");
	uint64_t uid, gid;

	if (stage == STAGE_RESTORE)
		resets_ignore();
	if (text && parse_list_item(&text, ':', UINT32_MAX - 1, &uid) && parse_number(text, 10, UINT32_MAX - 1, &gid)) {
		if (stage == STAGE_RESTORE)
			peers_are((unsigned)uid, (unsigned)gid);
		if (uid && as_user_is((unsigned)uid, (unsigned)gid, getenv("SLURMCKPT_GROUPS"))) {
			squashed_retry();
			guarded_names();
			if (stage == STAGE_RESTORE)
				pipes_are_users();
		}
	}
	return 0;
}

/* All stand still, and nothing has been injected yet. */
static int before_dump(int pid)
{
	const int result = restart_interrupted(pid);

	if (criu_get_image_dir) {
		undo_save(pid, criu_get_image_dir());
		policy_save(pid, criu_get_image_dir());
	}
	return result;
}

/* All have been restored, and none has run. */
static int after_restore(int pid)
{
	if (criu_get_image_dir) {
		undo_restore(pid, criu_get_image_dir());
		policy_restore(pid, criu_get_image_dir());
	}
	return 0;
}

static void finish(int stage, int result)
{
	(void)stage;
	(void)result;
}

struct plugin {
	const char *name;
	int (*init)(int stage);
	void (*exit)(int stage, int result);
	unsigned version;
	unsigned max_hooks;
	int (*hooks[HOOKS])(int pid);
};

extern const struct plugin CR_PLUGIN_DESC;
const struct plugin CR_PLUGIN_DESC = {
	.name = "slurmckpt-restart",
	.init = begin,
	.exit = finish,
	.version = 2 << 8,
	.max_hooks = HOOKS,
	.hooks[RESUME_DEVICES_LATE] = after_restore,
	.hooks[CHECKPOINT_DEVICES] = before_dump,
};
