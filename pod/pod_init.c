/*
 * pod-init --control FD --shim-pid PID [--cgroup FILE]... [--shm DIR] [--bind SOURCE:TARGET]... [--net new|keep|FD] [--hostname NAME]
 * [--anchor FD] [--doubt-signals]: builds a pod around the context of a task shim and stays in it as pid 1. Run by the step's anchor, or by the
 * coordinator, as root.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "descriptors.h"
#include "line.h"
#include "message.h"
#include "namespaces.h"
#include "number.h"
#include "pod.h"
#include "reason.h"
#include "signals.h"
#include "surroundings.h"

#define USAGE                                                                                                                   \
	"pod-init --control FD --shim-pid PID [--cgroup FILE]... [--shm DIR] [--bind SOURCE:TARGET]... [--net new|keep|FD] " \
	"[--hostname NAME] [--anchor FD] [--doubt-signals]"

struct options {
	struct surroundings surroundings;
	char **binds;		/* as many as argv has at most */
	size_t bind_count;
	bool new_network;
	int network;		/* namespace to join, or -1 */
	const char *hostname;	/* one of its own, or NULL */
	int anchor;		/* link to it, or -1 */
	bool doubt_signals;
};

static bool parse_network(const char *text, struct options *options)
{
	uint64_t network = 0;
	bool is_number = parse_number(text, 10, INT_MAX, &network) && network > 2;

	options->new_network = !strcmp(text, "new");
	options->network = is_number ? (int)network : -1;
	return options->new_network || is_number || !strcmp(text, "keep");
}

static int parse_options(int argc, char **argv, struct options *options, struct reason *reason)
{
	static const struct option known[] = {
		SURROUNDINGS_OPTIONS,
		{"bind", required_argument, NULL, 'b'},
		{"net", required_argument, NULL, 'n'},
		{"hostname", required_argument, NULL, 'H'},
		{"anchor", required_argument, NULL, 'a'},
		{"doubt-signals", no_argument, NULL, 'h'},
		{0},
	};
	uint64_t anchor = 0;
	int option, index = 0;

	opterr = 0;
	if (surroundings_open(&options->surroundings, argc, reason))
		return -1;
	options->binds = calloc((size_t)argc, sizeof(*options->binds));
	if (!options->binds)
		return refuse(reason, "out of memory");
	while ((option = getopt_long(argc, argv, "", known, &index)) != -1) {
		if (option == SURROUNDINGS_OPTION && surroundings_take(&options->surroundings, known[index].name, optarg, reason))
			return -1;
		if (option == 'b' && !namespace_bind_is_valid(optarg))
			return refuse(reason, "--bind %s is not SOURCE:TARGET, two absolute paths", optarg);
		if (option == 'b')
			options->binds[options->bind_count++] = optarg;
		if (option == 'n' && !parse_network(optarg, options))
			return refuse(reason, "--net %s is not known, accepted are new, keep and a descriptor above 2", optarg);
		if (option == 'H' && (!optarg[0] || strlen(optarg) > HOST_NAME_MAX))
			return refuse(reason, "--hostname %.100s is no name of 1 to %d bytes", optarg, HOST_NAME_MAX);
		if (option == 'H')
			options->hostname = optarg;
		if (option == 'a' && (!parse_number(optarg, 10, INT_MAX, &anchor) || anchor < 3))
			return refuse(reason, "--anchor %s is not a descriptor above 2", optarg);
		if (option == 'h')
			options->doubt_signals = true;
		if (option == '?')
			return refuse(reason, "usage: " USAGE);
	}
	if (optind != argc)
		return refuse(reason, "usage: " USAGE);
	options->anchor = anchor ? (int)anchor : -1;
	return surroundings_complete(&options->surroundings, USAGE, reason);
}

/* ---- first stage: still outside ---- */

static int leave(const struct options *options, struct reason *reason)
{
	int flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | (options->new_network ? CLONE_NEWNET : 0) |
		    (options->hostname ? CLONE_NEWUTS : 0);

	if (surroundings_adopt(&options->surroundings, reason))
		return -1;
	if (options->network >= 0 && namespace_join(options->network, "net", reason))
		return -1;
	if (unshare(flags))
		return refuse(reason, "cannot create the namespaces: %s", strerror(errno));
	if (options->hostname && sethostname(options->hostname, strlen(options->hostname)))
		return refuse(reason, "cannot set the host name: %s", strerror(errno));
	return 0;
}

/* ---- second stage: pid 1 ---- */

static int settle(const struct options *options, int *signals, struct reason *reason)
{
	const int control = options->surroundings.control;
	const int keep[] = {0, 1, 2, control, options->anchor < 0 ? control : options->anchor};

	setsid();
	if (namespace_mounts(options->surroundings.shm, reason))
		return -1;
	for (size_t i = 0; i < options->bind_count; i++) {
		if (namespace_bind(options->binds[i], reason))
			return -1;
	}
	/* a descriptor from the old mount namespace must not reach the leader: CRIU could not find its mount */
	if (descriptors_silence(true, reason))
		return -1;
	if (descriptors_close_others(keep, sizeof(keep) / sizeof(*keep)))
		return refuse(reason, "cannot close descriptors: %s", strerror(errno));
	if (chdir("/"))
		return refuse(reason, "cannot enter /: %s", strerror(errno));
	*signals = signals_open(SIGNALS_ALL);
	return *signals < 0 ? refuse(reason, "cannot watch signals: %s", strerror(errno)) : 0;
}

/* own_pid: in this namespace a process cannot see which pid it has outside, so its parent tells it. */
static int be_pid_1(const struct options *options, int own_pid, struct reason *reason)
{
	struct pod_links links = {
		.control = options->surroundings.control, .anchor = options->anchor, .doubt_signals = options->doubt_signals};

	if (read(own_pid, &links.pid, sizeof(links.pid)) != sizeof(links.pid))
		return refuse(reason, "the first stage of pod-init is gone");
	if (settle(options, &links.signals, reason))
		return -1;
	fcntl(links.control, F_SETFD, FD_CLOEXEC);
	if (links.anchor >= 0)
		fcntl(links.anchor, F_SETFD, FD_CLOEXEC);
	return pod_serve(&links, reason);
}

int main(int argc, char **argv)
{
	struct options options = {.network = -1, .anchor = -1};
	struct reason reason;
	int own_pid[2], result = 1;
	pid_t child;

	/* pid 1 gets only signals that it handles, and those that its namespace's parent forces on it: with all blocked, SIGKILL and SIGSTOP */
	signals_set_mask(SIGNALS_ALL);
	signals_set_ignored(0);
	if (parse_options(argc, argv, &options, &reason)) {
		print_format(STDERR_FILENO, "slurmckpt: pod-init: %s", reason.text);
		result = 2;
		goto out;
	}
	if (leave(&options, &reason))
		goto failed;
	if (pipe2(own_pid, 0)) {
		refuse(&reason, "cannot create a pipe: %s", strerror(errno));
		goto failed;
	}
	child = fork();
	if (child < 0) {
		refuse(&reason, "cannot fork: %s", strerror(errno));
		goto failed;
	}
	if (child == 0) {
		close(own_pid[1]);
		if (be_pid_1(&options, own_pid[0], &reason))
			goto failed;
	} else if (write(own_pid[1], &child, sizeof(child)) != sizeof(child)) {
		refuse(&reason, "cannot tell pid 1 its pid: %s", strerror(errno));
		goto failed;
	}
	result = 0;
	goto out;
failed:
	message_send_failed(options.surroundings.control, &reason);
out:
	surroundings_close(&options.surroundings);
	free(options.binds);
	return result;
}
