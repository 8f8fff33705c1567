/*
 * enter --pid POD_INIT [--keep-ipc] [--cgroup FILE]... [--real-id UID:GID] [--guard CHANNEL:BEAT] [--restores] [--uid U
 * --gid G --groups A,B,C [--chdir PATH] [--environment FD]] [--whole] -- PROGRAM ARG...: runs a program inside a pod (CRIU, for one) and ends
 * as the program ends. All inherited descriptors are passed on. With --keep-ipc it stays in the caller's IPC namespace, with --uid it has that
 * user's rights and no others, with --whole nothing that it has started outlives it. A guarded program holds processes of the pod still: see
 * guard.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cgroup.h"
#include "credentials.h"
#include "end.h"
#include "environment.h"
#include "guard.h"
#include "line.h"
#include "namespaces.h"
#include "number.h"
#include "reason.h"
#include "sane.h"
#include "signals.h"
#include "whole.h"

#define USAGE                                                                                                                              \
	"enter --pid POD_INIT [--keep-ipc] [--cgroup FILE]... [--real-id UID:GID] [--guard CHANNEL:BEAT] [--restores] [--uid U --gid G " \
	"--groups A,B,C [--chdir PATH] [--environment FD]] [--whole] -- PROGRAM ARG..."
#define INSANE "CRIU was killed and a process of the pod cannot be brought back, so the pod is ended"

struct options {
	pid_t pid;
	bool keep_ipc;
	char **cgroups;		/* as many as argv has at most */
	size_t cgroup_count;
	bool has_real_id;
	uint64_t uid, gid;
	struct guard guard;
	bool restores;		/* the program makes processes, they are not there before */
	const char *user_id, *group_id, *groups;	/* all of them, or none */
	struct credentials user;
	const char *directory;	/* where the program starts, or NULL */
	int environment;	/* where its environment is, or -1: that of enter */
	bool whole;
	char **program;
};

static bool parse_real_id(const char *text, struct options *options)
{
	options->has_real_id = parse_list_item(&text, ':', UINT32_MAX - 1, &options->uid) &&
			       parse_number(text, 10, UINT32_MAX - 1, &options->gid);
	return options->has_real_id;
}

static bool parse_guard(const char *text, struct guard *guard)
{
	uint64_t channel, beat;
	bool good = parse_list_item(&text, ':', INT_MAX, &channel) && parse_number(text, 10, INT_MAX, &beat) && channel > 2 && beat > 2;

	if (good)
		*guard = (struct guard){.channel = (int)channel, .beat = (int)beat};
	return good;
}

static int parse_options(int argc, char **argv, struct options *options, struct reason *reason)
{
	static const struct option known[] = {
		{"pid", required_argument, NULL, 'p'},
		{"keep-ipc", no_argument, NULL, 'i'},
		{"cgroup", required_argument, NULL, 'c'},
		{"real-id", required_argument, NULL, 'r'},
		{"guard", required_argument, NULL, 'g'},
		{"restores", no_argument, NULL, 's'},
		{"uid", required_argument, NULL, 'U'},
		{"gid", required_argument, NULL, 'G'},
		{"groups", required_argument, NULL, 'S'},
		{"chdir", required_argument, NULL, 'd'},
		{"environment", required_argument, NULL, 'e'},
		{"whole", no_argument, NULL, 'w'},
		{0},
	};
	uint64_t pid = 0, environment = 0;
	int option;

	opterr = 0;
	options->cgroups = calloc((size_t)argc, sizeof(*options->cgroups));
	if (!options->cgroups)
		return refuse(reason, "out of memory");
	while ((option = getopt_long(argc, argv, "+", known, NULL)) != -1) {
		if (option == 'p' && (!parse_number(optarg, 10, INT_MAX, &pid) || pid < 2))
			return refuse(reason, "--pid %s is not the pid of a pod init", optarg);
		if (option == 'i')
			options->keep_ipc = true;
		if (option == 'c')
			options->cgroups[options->cgroup_count++] = optarg;
		if (option == 'r' && !parse_real_id(optarg, options))
			return refuse(reason, "--real-id %s is not UID:GID", optarg);
		if (option == 'g' && !parse_guard(optarg, &options->guard))
			return refuse(reason, "--guard %s is not CHANNEL:BEAT, two descriptors above 2", optarg);
		if (option == 's')
			options->restores = true;
		if (option == 'U')
			options->user_id = optarg;
		if (option == 'G')
			options->group_id = optarg;
		if (option == 'S')
			options->groups = optarg;
		if (option == 'd')
			options->directory = optarg;
		if (option == 'e' && (!parse_number(optarg, 10, INT_MAX, &environment) || environment < 3))
			return refuse(reason, "--environment %s is not a descriptor above 2", optarg);
		if (option == 'w')
			options->whole = true;
		if (option == '?')
			return refuse(reason, "usage: " USAGE);
	}
	if (pid == 0 || optind == argc)
		return refuse(reason, "usage: " USAGE);
	options->pid = (pid_t)pid;
	options->environment = environment ? (int)environment : -1;
	options->program = argv + optind;
	if (!options->user_id)
		return 0;
	return credentials_parse(options->user_id, options->group_id, options->groups, &options->user, reason);
}

/* Opened before any is joined: the mount namespace decides what /proc shows. Joined last for the same reason. */
static int join_namespaces(pid_t pid, bool keep_ipc, struct reason *reason)
{
	static const char *const names[] = {"ipc", "uts", "net", "pid", "mnt"};
	int fds[] = {-1, -1, -1, -1, -1};
	const size_t count = sizeof(fds) / sizeof(*fds);
	const size_t first = keep_ipc ? 1 : 0;
	int result = 0;

	for (size_t i = first; i < count && !result; i++) {
		fds[i] = namespace_open(pid, names[i], reason);
		result = fds[i] < 0 ? -1 : 0;
	}
	for (size_t i = first; i < count && !result; i++)
		result = namespace_join(fds[i], names[i], reason);
	for (size_t i = 0; i < count; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
	}
	return result;
}

/*
 * A process may read another's limits (prlimit) without CAP_SYS_RESOURCE only when its real ids are the other's; the effective ids stay
 * root's. Never through a shell: it would drop the effective ones.
 */
static int set_real_id(const struct options *options, struct reason *reason)
{
	if (setresgid((gid_t)options->gid, 0, 0) || setresuid((uid_t)options->uid, 0, 0))
		return refuse(reason, "cannot set the real ids: %s", strerror(errno));
	return 0;
}

/* Only then is anything of the user's looked at. A directory that is gone is no reason not to run the program. */
static int become_user(const struct options *options, struct reason *reason)
{
	if (setsid() < 0)
		return refuse(reason, "cannot make a session: %s", strerror(errno));
	if (credentials_assume(&options->user, reason))
		return -1;
	if (chdir(options->directory ? options->directory : "/") && chdir("/"))
		return refuse(reason, "cannot enter /: %s", strerror(errno));
	if (options->environment < 0)
		return 0;
	fcntl(options->environment, F_SETFD, FD_CLOEXEC);
	return environment_adopt(options->environment, reason);
}

_Noreturn static void become_program(const struct options *options, signal_mask mask)
{
	struct reason reason;
	int code = 126;

	if (options->has_real_id && set_real_id(options, &reason))
		goto out;
	if (options->user_id && become_user(options, &reason))
		goto out;
	signals_set_mask(mask);
	execvp(options->program[0], options->program);
	code = errno == ENOENT ? 127 : 126;
	refuse(&reason, "cannot execute %s: %s", options->program[0], strerror(errno));
	signals_set_mask(SIGNALS_ALL);
out:
	print_format(STDERR_FILENO, "slurmckpt: enter: %s", reason.text);
	_exit(code);
}

/* Stands between enter and the program, inside the pod, as root. */
_Noreturn static void become_supervisor(const struct options *options, signal_mask mask)
{
	pid_t program = whole_begin() ? fork() : -1;

	if (program == 0)
		become_program(options, mask);
	if (program < 0) {
		print_format(STDERR_FILENO, "slurmckpt: enter: cannot fork: %s", strerror(errno));
		_exit(125);
	}
	end_like(whole_wait(program));
}

/*
 * A guarded program was killed in the middle of what it did. A child looks after the processes, as it is in their PID namespace; when one
 * of them cannot be saved, the pod ends: a job that fails, or is restored, is better than one that hangs or computes nonsense.
 */
static void look_after(pid_t pod_init)
{
	int wait_status = 0;
	pid_t child = fork();

	if (child == 0)
		_exit(pod_is_sane() ? 0 : 1);
	if (child < 0 || waitpid(child, &wait_status, 0) != child || wait_status) {
		kill(pod_init, SIGKILL);
		print_format(STDERR_FILENO, "slurmckpt: enter: %s", INSANE);
	}
}

int main(int argc, char **argv)
{
	signal_mask mask = signals_set_mask(SIGNALS_ALL);
	struct options options = {.guard = GUARD_NONE, .environment = -1};
	struct reason reason;
	int wait_status = 0;
	bool ran = false;
	pid_t child;

	if (parse_options(argc, argv, &options, &reason))
		goto out;
	for (size_t i = 0; i < options.cgroup_count; i++) {
		if (cgroup_join(options.cgroups[i], &reason))
			goto out;
	}
	if (join_namespaces(options.pid, options.keep_ipc, &reason))
		goto out;
	if (options.guard.beat >= 0)
		fcntl(options.guard.beat, F_SETFD, FD_CLOEXEC);
	/* an ignored SIGCHLD would take the child's status away */
	signals_set_ignored(signals_ignored() & ~signal_bit(SIGCHLD));
	child = fork();
	if (child < 0) {
		refuse(&reason, "cannot fork: %s", strerror(errno));
		goto out;
	}
	if (child == 0 && options.whole)
		become_supervisor(&options, mask);
	if (child == 0)
		become_program(&options, mask);
	options.guard.pod_init = options.restores ? options.pid : -1;
	wait_status = guard_wait(child, &options.guard);
	if (WIFSIGNALED(wait_status) && options.guard.channel >= 0 && !options.restores)
		look_after(options.pid);
	ran = true;
out:
	free(options.cgroups);
	credentials_free(&options.user);
	if (ran)
		end_like(wait_status);
	print_format(STDERR_FILENO, "slurmckpt: enter: %s", reason.text);
	return 125;
}
