/*
 * launcher --control FD --shim-pid PID [--cgroup FILE]... [--shm DIR] --uid U --gid G --groups A,B,C --program PATH: runs the real srun for
 * a stand-in that waits in the pod of a batch script. Executed by the coordinator, as root, outside the pod; does not depend on it
 * afterwards: signals come from the stand-in, and the status goes to it.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cgroup.h"
#include "context.h"
#include "credentials.h"
#include "descriptors.h"
#include "launch.h"
#include "line.h"
#include "message.h"
#include "namespaces.h"
#include "number.h"
#include "reason.h"
#include "signals.h"

#define USAGE \
	"launcher --control FD --shim-pid PID [--cgroup FILE]... [--shm DIR] --uid U --gid G --groups A,B,C --program PATH"

struct options {
	int control;
	pid_t shim;
	char **cgroups;		/* as many as argv has at most */
	size_t cgroup_count;
	const char *shm;
	const char *uid, *gid, *groups;
	struct credentials user;
	const char *program;
};

static int parse_options(int argc, char **argv, struct options *options, struct reason *reason)
{
	static const struct option known[] = {
		{"control", required_argument, NULL, 'f'},
		{"shim-pid", required_argument, NULL, 'p'},
		{"cgroup", required_argument, NULL, 'c'},
		{"shm", required_argument, NULL, 's'},
		{"uid", required_argument, NULL, 'u'},
		{"gid", required_argument, NULL, 'g'},
		{"groups", required_argument, NULL, 'G'},
		{"program", required_argument, NULL, 'x'},
		{0},
	};
	uint64_t control = 0, shim = 0;
	int option;

	opterr = 0;
	options->cgroups = calloc((size_t)argc, sizeof(*options->cgroups));
	if (!options->cgroups)
		return refuse(reason, "out of memory");
	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		if (option == 'f' && (!parse_number(optarg, 10, INT_MAX, &control) || control < 3))
			return refuse(reason, "--control %s is not a descriptor above 2", optarg);
		if (option == 'p' && (!parse_number(optarg, 10, INT_MAX, &shim) || shim < 2))
			return refuse(reason, "--shim-pid %s is not the pid of a task shim", optarg);
		if (option == 'c')
			options->cgroups[options->cgroup_count++] = optarg;
		if (option == 's')
			options->shm = optarg;
		if (option == 'u')
			options->uid = optarg;
		if (option == 'g')
			options->gid = optarg;
		if (option == 'G')
			options->groups = optarg;
		if (option == 'x' && optarg[0] != '/')
			return refuse(reason, "--program %s is not an absolute path", optarg);
		if (option == 'x')
			options->program = optarg;
		if (option == '?')
			return refuse(reason, "usage: " USAGE);
	}
	if (control == 0 || shim == 0 || !options->uid || !options->gid || !options->groups || !options->program || optind != argc)
		return refuse(reason, "usage: " USAGE);
	if (!message_is_socket((int)control))
		return refuse(reason, "--control %d is not a SOCK_SEQPACKET socket", (int)control);
	options->control = (int)control;
	options->shim = (pid_t)shim;
	return credentials_parse(options->uid, options->gid, options->groups, &options->user, reason);
}

/* The surroundings of the script, and the user's rights. What is the user's own data is not looked at before that. */
static int settle(const struct options *options, struct message *message, struct reason *reason)
{
	/* groups first: their paths belong to the mount namespace of the coordinator */
	for (size_t i = 0; i < options->cgroup_count; i++) {
		if (cgroup_join(options->cgroups[i], reason))
			return -1;
	}
	if (context_adopt(options->shim, reason) || (options->shm && namespace_shm(options->shm, reason)) ||
	    launch_receive(options->control, message, reason))
		return -1;
	/* fails only for a session leader */
	setsid();
	if (chdir("/"))
		return refuse(reason, "cannot enter /: %s", strerror(errno));
	if (credentials_assume(&options->user, reason))
		return -1;
	/* the user can kill this process, but not make it say something on the coordinator's connection */
	prctl(PR_SET_DUMPABLE, 0);
	return 0;
}

static int run(const struct options *options, struct reason *reason)
{
	struct message message = MESSAGE_EMPTY;
	struct launch launch = {.control = options->control, .signals = -1, .status = -1, .children = -1};
	int result = settle(options, &message, reason);

	if (!result)
		result = launch_start(&launch, options->program, &message, reason);
	message_free(&message);
	if (!result)
		launch_serve(&launch);
	return result;
}

int main(int argc, char **argv)
{
	struct options options = {0};
	struct reason reason;
	int result = 1;

	signals_set_mask(SIGNALS_ALL);
	signals_set_ignored(0);
	if (parse_options(argc, argv, &options, &reason)) {
		print_format(STDERR_FILENO, "slurmckpt: launcher: %s", reason.text);
		result = 2;
	} else if (run(&options, &reason)) {
		message_send_failed(options.control, &reason);
	} else {
		result = 0;
	}
	credentials_free(&options.user);
	free(options.cgroups);
	return result;
}
