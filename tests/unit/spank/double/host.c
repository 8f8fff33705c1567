/*
 * A double of the Slurm programs that load a SPANK plugin (sbatch, srun, slurmd, slurmstepd): calls the plugin in the
 * order of the real ones and prints what it did, one event a line, on stdout. Standard error is the task's own.
 *
 *   host PLUGIN CONTEXT [arg=WORD|opt=NAME[=VALUE]|env=NAME=VALUE|ITEM=NUMBER|setuid=UID|chroot=DIR|exec=1|
 *        components=N|optind=N|--WORD]... [-- ARGV...]
 *
 * components: of a heterogeneous job. optind: as getopt leaves it, for a plugin that looks at the command line; --WORD
 * is there for that, too.
 * setuid and chroot happen between task_init_privileged and task_init, as slurmstepd and container plugins do it.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

enum { MAX = 32 };

static enum spank_context context;
static struct spank_option *registered[MAX];
static int registered_count;
static char *plugin_argv[MAX];
static int plugin_argc;
static const char *environment[MAX];
static int environment_count;
static const char *task_argv[MAX];
static int task_argc;

static const struct {
	const char *name;
	enum spank_item item;
} items[] = {
	{ "uid", S_JOB_UID },       { "gid", S_JOB_GID },       { "job", S_JOB_ID },
	{ "step", S_JOB_STEPID },   { "nnodes", S_JOB_NNODES }, { "nodeid", S_JOB_NODEID },
	{ "task", S_TASK_ID },      { "gtask", S_TASK_GLOBAL_ID }, { "ntasks", S_JOB_LOCAL_TASK_COUNT },
};
static uint32_t item_value[sizeof(items) / sizeof(items[0])];

static void event(const char *kind, const char *format, va_list arguments)
{
	printf("%s ", kind);
	vprintf(format, arguments);
	putchar('\n');
}

void slurm_error(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	event("error", format, arguments);
	va_end(arguments);
}

void slurm_info(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	event("info", format, arguments);
	va_end(arguments);
}

spank_context_t spank_context(void)
{
	return context;
}

const char *spank_strerror(spank_err_t err)
{
	return err == ESPANK_SUCCESS ? "success" : "failure";
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
	(void)spank;
	registered[registered_count++] = option;
	printf("registered %s|%s|%d|%s\n", option->name, option->arginfo ? option->arginfo : "", option->has_arg,
	       option->usage);
	return ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	va_list arguments;

	(void)spank;
	va_start(arguments, item);
	for (size_t i = 0; i < sizeof(items) / sizeof(items[0]); i++) {
		if (items[i].item == item)
			*va_arg(arguments, uint32_t *) = item_value[i];
	}
	va_end(arguments);
	return ESPANK_SUCCESS;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *buffer, int size)
{
	size_t length = strlen(name);

	(void)spank;
	for (int i = 0; i < environment_count; i++) {
		if (strncmp(environment[i], name, length) == 0 && environment[i][length] == '=')
			return snprintf(buffer, (size_t)size, "%s", environment[i] + length + 1) < size ?
				       ESPANK_SUCCESS :
				       ESPANK_NOSPACE;
	}
	return ESPANK_ENV_NOEXIST;
}

spank_err_t spank_unsetenv(spank_t spank, const char *name)
{
	size_t length = strlen(name);

	(void)spank;
	for (int i = 0; i < environment_count; i++) {
		if (strncmp(environment[i], name, length) == 0 && environment[i][length] == '=')
			environment[i--] = environment[--environment_count];
	}
	return ESPANK_SUCCESS;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	static char entry[1024];

	(void)overwrite;
	spank_unsetenv(spank, name);
	snprintf(entry, sizeof(entry), "%s=%s", name, value);
	environment[environment_count++] = entry;
	return ESPANK_SUCCESS;
}

#ifndef OLD_SLURM
spank_err_t spank_prepend_task_argv(spank_t spank, int argc, const char *argv[])
{
	(void)spank;
	memmove(task_argv + argc, task_argv, sizeof(task_argv[0]) * (size_t)(task_argc + 1));
	for (int i = 0; i < argc; i++)
		task_argv[i] = strdup(argv[i]);
	task_argc += argc;
	return ESPANK_SUCCESS;
}
#endif

static int call(void *plugin, const char *name)
{
	spank_f *function = (spank_f *)dlsym(plugin, name);
	int rc = function(NULL, plugin_argc, plugin_argv);

	printf("%s %d\n", name, rc);
	return rc;
}

static void give_option(const char *text)
{
	const char *value = strchr(text, '=');
	size_t length = value ? (size_t)(value - text) : strlen(text);

	for (int i = 0; i < registered_count; i++) {
		struct spank_option *option = registered[i];

		if (strlen(option->name) == length && strncmp(option->name, text, length) == 0)
			printf("option %s %d\n", option->name,
			       option->cb(option->val, value ? value + 1 : NULL, context == S_CTX_REMOTE));
	}
}

static bool take_item(const char *word)
{
	for (size_t i = 0; i < sizeof(items) / sizeof(items[0]); i++) {
		size_t length = strlen(items[i].name);

		if (strncmp(word, items[i].name, length) == 0 && word[length] == '=') {
			item_value[i] = (uint32_t)strtoul(word + length + 1, NULL, 10);
			return true;
		}
	}
	return false;
}

int main(int argc, char *argv[])
{
	static const char *const contexts[] = { "error", "local", "remote", "allocator", "slurmd", "script" };
	const char *new_root = NULL;
	const char *user = NULL;
	bool execute = false;
	int components = 1;
	void *plugin;

	if (argc < 3 || !(plugin = dlopen(argv[1], RTLD_LAZY))) {
		fprintf(stderr, "host: %s\n", argc < 3 ? "usage" : dlerror());
		return 99;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; i < sizeof(contexts) / sizeof(contexts[0]); i++) {
		if (strcmp(argv[2], contexts[i]) == 0)
			context = (enum spank_context)i;
	}
	for (int i = 3; i < argc; i++) {
		if (strncmp(argv[i], "arg=", 4) == 0)
			plugin_argv[plugin_argc++] = argv[i] + 4;
		else if (strncmp(argv[i], "env=", 4) == 0)
			environment[environment_count++] = argv[i] + 4;
		else if (strncmp(argv[i], "chroot=", 7) == 0)
			new_root = argv[i] + 7;
		else if (strncmp(argv[i], "setuid=", 7) == 0)
			user = argv[i] + 7;
		else if (strcmp(argv[i], "exec=1") == 0)
			execute = true;
		else if (strncmp(argv[i], "components=", 11) == 0)
			components = atoi(argv[i] + 11);
		else if (strncmp(argv[i], "optind=", 7) == 0)
			optind = atoi(argv[i] + 7);
		else if (strcmp(argv[i], "--") == 0) {
			while (++i < argc)
				task_argv[task_argc++] = argv[i];
		} else if (strncmp(argv[i], "opt=", 4) != 0 && strncmp(argv[i], "--", 2) != 0 && !take_item(argv[i])) {
			fprintf(stderr, "host: what is %s?\n", argv[i]);
			return 99;
		}
	}

	call(plugin, "slurm_spank_init");
	for (int i = 3; i < argc; i++) {
		if (strncmp(argv[i], "opt=", 4) == 0)
			give_option(argv[i] + 4);
	}
	for (int i = 0; context != S_CTX_SLURMD && i < components; i++)
		call(plugin, "slurm_spank_init_post_opt");
	if (context == S_CTX_REMOTE) {
		call(plugin, "slurm_spank_task_init_privileged");
		if (new_root && chroot(new_root) < 0) {
			fprintf(stderr, "host: chroot: %s\n", strerror(errno));
			return 99;
		}
		if (user && setuid((uid_t)atoi(user)) < 0) {
			fprintf(stderr, "host: setuid: %s\n", strerror(errno));
			return 99;
		}
		call(plugin, "slurm_spank_task_init");
		printf("argv");
		for (int i = 0; i < task_argc; i++)
			printf("|%s", task_argv[i]);
		putchar('\n');
		for (int i = 0; i < environment_count; i++)
			printf("environment %s\n", environment[i]);
		fflush(stdout);
		if (execute) {
			execv(task_argv[0], (char **)task_argv);
			fprintf(stderr, "host: exec: %s\n", strerror(errno));
			return 98;
		}
		/* What the task would inherit beside its stdio, when all is well one socket. */
		for (int fd = 3; fd < 64; fd++) {
			int flags = fcntl(fd, F_GETFD);

			if (flags >= 0 && !(flags & FD_CLOEXEC))
				printf("inherits %d\n", fd);
		}
	}
	return 0;
}
