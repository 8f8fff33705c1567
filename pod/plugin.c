/*
 * restart.so: what CRIU loads of ours (criu.org/Plugins), as its criu-plugin.h of version 0.2 has it. At a dump it has interrupted calls start
 * again (restart.c), at a restore it gives unix sockets the job's user for their peers (peers.c), whom SLURMCKPT_USER=UID:GID names.
 */
#include <stdint.h>
#include <stdlib.h>

#include "number.h"
#include "peers.h"
#include "restart.h"

enum { STAGE_RESTORE = 2 };
enum { CHECKPOINT_DEVICES = 11, HOOKS };

static int begin(int stage)
{
	const char *text = getenv("SLURMCKPT_USER");
	uint64_t uid, gid;

	if (stage == STAGE_RESTORE && text && parse_list_item(&text, ':', UINT32_MAX - 1, &uid) && parse_number(text, 10, UINT32_MAX - 1, &gid))
		peers_are((unsigned)uid, (unsigned)gid);
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
	.hooks[CHECKPOINT_DEVICES] = restart_interrupted,
};
