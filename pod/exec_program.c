#include "exec_program.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "line.h"

/* The search, the two messages and the exit code follow exec_task() and _build_path() of slurmstepd (src/slurmd/slurmstepd/task.c). */

static const char *environment_value(char **envp, const char *name)
{
	size_t length = strlen(name);
	const char *value = NULL;

	for (; *envp && !value; envp++) {
		if (!strncmp(*envp, name, length) && (*envp)[length] == '=')
			value = *envp + length + 1;
	}
	return value;
}

static bool is_file(const char *path)
{
	struct stat status;

	return !stat(path, &status) && !S_ISDIR(status.st_mode);
}

/* Looks through PATH, skipping empty entries; the name itself when nothing is found. */
static void search_path(const char *name, const char *path, char *found, size_t room)
{
	while (path && *path) {
		size_t length = strcspn(path, ":");

		if (length) {
			snprintf(found, room, "%.*s/%s", (int)length, path, name);
			if (is_file(found))
				return;
		}
		path += length + (path[length] == ':');
	}
	snprintf(found, room, "%s", name);
}

static void resolve(const char *name, char **envp, char *resolved, size_t room)
{
	char cwd[PATH_MAX] = "";

	if (name[0] == '/') {
		snprintf(resolved, room, "%s", name);
	} else if (name[0] == '.') {
		if (!getcwd(cwd, sizeof(cwd)))
			print_format(STDERR_FILENO, "slurmstepd: error: getcwd failed: %s", strerror(errno));
		snprintf(resolved, room, "%s/%s", cwd, name);
	} else {
		search_path(name, environment_value(envp, "PATH"), resolved, room);
	}
}

/* "srun --bcast=DIR/": the program is the file that Slurm has broadcast into that directory. */
static void append_broadcast_name(char **envp, char *path, size_t room)
{
	const char *job = environment_value(envp, "SLURM_JOB_ID"), *step = environment_value(envp, "SLURM_STEP_ID");
	const char *node = environment_value(envp, "SLURMD_NODENAME");
	size_t length = strlen(path);

	if (length && path[length - 1] == '/' && job && step && node)
		snprintf(path + length, room - length, "slurm_bcast_%s.%s_%s", job, step, node);
}

/* The interpreter line of a script, without "#!"; false when the file is not a script. */
static bool read_interpreter(const char *path, char *interpreter, size_t room)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t size = fd >= 0 ? read(fd, interpreter, room - 1) : -1;
	bool script = size >= 3 && !strncmp(interpreter, "#!", 2);

	if (script) {
		interpreter[size] = '\0';
		interpreter[strcspn(interpreter, "\n")] = '\0';
		memmove(interpreter, interpreter + 2, strlen(interpreter + 2) + 1);
	}
	if (fd >= 0)
		close(fd);
	return script;
}

_Noreturn void exec_program(char **argv, char **envp, signal_mask blocked)
{
	char path[2 * PATH_MAX], interpreter[256];
	int error;

	resolve(argv[0], envp, path, sizeof(path));
	append_broadcast_name(envp, path, sizeof(path));
	argv[0] = path;
	signals_set_mask(blocked);
	execve(path, argv, envp);
	error = errno;
	signals_set_mask(SIGNALS_ALL);
	if (error == ENOENT && read_interpreter(path, interpreter, sizeof(interpreter)))
		print_format(STDERR_FILENO, "slurmstepd: error: execve(): bad interpreter(%s): %s", interpreter, strerror(error));
	else
		print_format(STDERR_FILENO, "slurmstepd: error: execve(): %s: %s", path, strerror(error));
	_exit(error);
}
