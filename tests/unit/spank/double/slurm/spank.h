/*
 * A double of <slurm/spank.h> for the unit tests: only what the plugin uses, with the same names and types. The numbers
 * of the enumerators are our own; plugin and host double are compiled against the same ones.
 */
#ifndef SLURMCKPT_TEST_SPANK_H
#define SLURMCKPT_TEST_SPANK_H

#include <stdint.h>
#include <sys/types.h>

typedef struct spank_handle *spank_t;

typedef enum { ESPANK_SUCCESS, ESPANK_ENV_NOEXIST, ESPANK_NOSPACE, ESPANK_NOT_TASK } spank_err_t;

typedef enum spank_context {
	S_CTX_ERROR,
	S_CTX_LOCAL,
	S_CTX_REMOTE,
	S_CTX_ALLOCATOR,
	S_CTX_SLURMD,
	S_CTX_JOB_SCRIPT,
} spank_context_t;

typedef enum spank_item {
	S_JOB_UID,
	S_JOB_GID,
	S_JOB_ID,
	S_JOB_STEPID,
	S_JOB_NNODES,
	S_JOB_NODEID,
	S_JOB_LOCAL_TASK_COUNT,
	S_TASK_ID,
	S_TASK_GLOBAL_ID,
} spank_item_t;

struct spank_option {
	char *name;
	char *arginfo;
	char *usage;
	int has_arg;
	int val;
	int (*cb)(int val, const char *optarg, int remote);
};

typedef int spank_f(spank_t spank, int argc, char *argv[]);
extern spank_f slurm_spank_init;
extern spank_f slurm_spank_init_post_opt;
extern spank_f slurm_spank_task_init_privileged;
extern spank_f slurm_spank_task_init;

spank_context_t spank_context(void);
spank_err_t spank_option_register(spank_t spank, struct spank_option *option);
spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...);
spank_err_t spank_getenv(spank_t spank, const char *name, char *buffer, int size);
spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite);
spank_err_t spank_unsetenv(spank_t spank, const char *name);
spank_err_t spank_prepend_task_argv(spank_t spank, int argc, const char *argv[]);
const char *spank_strerror(spank_err_t err);
void slurm_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void slurm_info(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define SLURM_VERSION_NUMBER 0x1a0500

#define SPANK_PLUGIN(name, version)                                                                                    \
	const char plugin_name[] = #name;                                                                              \
	const char plugin_type[] = "spank";                                                                            \
	const unsigned int plugin_version = SLURM_VERSION_NUMBER;                                                      \
	const unsigned int spank_plugin_version = version;

#endif
