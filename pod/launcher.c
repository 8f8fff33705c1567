/*
 * launcher --control FD --shim-pid PID [--cgroup FILE]... [--shm DIR] --uid U --gid G --groups A,B,C --program PATH: runs the real srun for
 * a stand-in that waits in the pod of a batch script. Executed by the coordinator, as root, outside the pod; does not depend on it
 * afterwards: signals come from the stand-in, and the status goes to it.
 */
#include <errno.h>
#include <getopt.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "credentials.h"
#include "descriptors.h"
#include "launch.h"
#include "line.h"
#include "message.h"
#include "namespaces.h"
#include "reason.h"
#include "signals.h"
#include "surroundings.h"

#define USAGE \
	"launcher --control FD --shim-pid PID [--cgroup FILE]... [--shm DIR] --uid U --gid G --groups A,B,C --program PATH"

struct options {
	struct surroundings surroundings;
	const char *uid, *gid, *groups;
	struct credentials user;
	const char *program;
};

static int parse_options(int argc, char **argv, struct options *options, struct reason *reason)
{
	static const struct option known[] = {
		SURROUNDINGS_OPTIONS,
		{"uid", required_argument, NULL, 'u'},
		{"gid", required_argument, NULL, 'g'},
		{"groups", required_argument, NULL, 'G'},
		{"program", required_argument, NULL, 'x'},
		{0},
	};
	int option, index = 0;

	opterr = 0;
	if (surroundings_open(&options->surroundings, argc, reason))
		return -1;
	while ((option = getopt_long(argc, argv, "", known, &index)) != -1) {
		if (option == SURROUNDINGS_OPTION && surroundings_take(&options->surroundings, known[index].name, optarg, reason))
			return -1;
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
	if (!options->uid || !options->gid || !options->groups || !options->program || optind != argc)
		return refuse(reason, "usage: " USAGE);
	return surroundings_complete(&options->surroundings, USAGE, reason)
		       ? -1
		       : credentials_parse(options->uid, options->gid, options->groups, &options->user, reason);
}

/* The surroundings of the script, and the user's rights. What is the user's own data is not looked at before that. */
static int settle(const struct options *options, struct message *message, struct reason *reason)
{
	const char *shm = options->surroundings.shm;

	if (surroundings_adopt(&options->surroundings, reason) || (shm && namespace_shm(shm, reason)) ||
	    launch_receive(options->surroundings.control, message, reason))
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
	struct launch launch = {.control = options->surroundings.control, .signals = -1, .status = -1, .children = -1};
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
		message_send_failed(options.surroundings.control, &reason);
	} else {
		result = 0;
	}
	credentials_free(&options.user);
	surroundings_close(&options.surroundings);
	return result;
}
