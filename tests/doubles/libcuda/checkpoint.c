/* DOUBLE (simulated device): cuCheckpointProcess*, as the one who calls them sees them. */
#include "checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "process.h"
#include "settings.h"

#define LOOK_NS 20000000L

/* How often this process has called what, for errors that come only so often. */
enum call { CALL_LOCK, CALL_CHECKPOINT, CALL_RESTORE, CALL_UNLOCK, CALL_STATE, CALL_THREAD, CALLS };

static const char *const names[CALLS] = {"lock", "checkpoint", "restore", "unlock", "state", "thread"};
static _Atomic int failed_calls[CALLS];

/* What has ended, but was not waited for, is dead. */
static bool alive(int pid)
{
	char path[64], line[512] = "";
	const char *end;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return false;
	end = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
	fclose(file);
	return end && end[1] == ' ' && end[2] != 'Z' && end[2] != 'X';
}

/* The innermost pid of a process: what it knows itself by. */
static int own_pid_of(int pid)
{
	char path[64], line[256];
	int found = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		if (!strncmp(line, "NSpid:", 6))
			found = atoi(strrchr(line, '\t') + 1);
	}
	if (file)
		fclose(file);
	return found;
}

static struct simulated *map_of(int pid, const char *name)
{
	struct simulated *place = MAP_FAILED;
	char path[300], target[64];
	ssize_t length;
	int file;

	snprintf(path, sizeof(path), "/proc/%d/fd/%s", pid, name);
	length = readlink(path, target, sizeof(target) - 1);
	target[length > 0 ? length : 0] = '\0';
	if (strncmp(target, "/memfd:" SIMULATED_MEMFD, strlen("/memfd:" SIMULATED_MEMFD)))
		return NULL;
	file = open(path, O_RDWR | O_CLOEXEC);
	if (file >= 0) {
		place = mmap(NULL, sizeof(*place), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		close(file);
	}
	if (place == MAP_FAILED)
		return NULL;
	if (place->magic != SIMULATED_MAGIC || place->pid != own_pid_of(pid)) {
		munmap(place, sizeof(*place));
		return NULL;
	}
	return place;
}

static struct simulated *find(int pid)
{
	struct simulated *found = NULL;
	struct dirent *entry;
	char path[64];
	DIR *directory;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	directory = opendir(path);
	while (directory && !found && (entry = readdir(directory)))
		found = map_of(pid, entry->d_name);
	if (directory)
		closedir(directory);
	return found;
}

static void pause_ms(long long ms)
{
	struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

	if (ms > 0)
		nanosleep(&time, NULL);
}

/* The error that the settings want of this call, or 0. */
static int wanted_error(enum call call, int pid)
{
	char key[64], text[64], *times;
	int code;

	snprintf(key, sizeof(key), "%s.error.%d", names[call], pid);
	settings_text(key, "", text, sizeof(text));
	if (!*text) {
		snprintf(key, sizeof(key), "%s.error", names[call]);
		settings_text(key, "0", text, sizeof(text));
	}
	code = (int)strtol(text, &times, 10);
	if (code && *times == '*' && atomic_fetch_add(&failed_calls[call], 1) >= atoi(times + 1))
		code = 0;
	return code;
}

/* What the settings want to happen at this place of this call. */
static void wanted_event(enum call call, const char *when, int pid, char *what, size_t size)
{
	char key[64];

	snprintf(key, sizeof(key), "%s.%s.%d", names[call], when, pid);
	settings_text(key, "", what, size);
	if (!*what) {
		snprintf(key, sizeof(key), "%s.%s", names[call], when);
		settings_text(key, "", what, size);
	}
}

/* Tell whoever watches that this call has come so far. */
static void leave_mark(enum call call, const char *when)
{
	char path[512];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s.%s", settings_directory(), names[call], when);
	file = fopen(path, "we");
	if (file)
		fclose(file);
}

static void stage(enum call call, const char *when, int pid)
{
	char what[32];

	wanted_event(call, when, pid, what, sizeof(what));
	if (!strcmp(what, "die-target") || !strcmp(what, "die-both"))
		kill(pid, SIGKILL);
	if (!strcmp(what, "die-caller") || !strcmp(what, "die-both"))
		kill(getpid(), SIGKILL);
	while (!strcmp(what, "hang"))
		pause_ms(1000);
	while (!strcmp(what, "wait")) {
		leave_mark(call, when);
		pause_ms(5);
		wanted_event(call, when, pid, what, sizeof(what));
	}
}

static int begin(enum call call, int pid, struct simulated **target)
{
	char key[64];
	int error;

	*target = NULL;
	/* the caller must have called cuInit, and need not hold a device */
	if (!process_shared())
		return NOT_INITIALIZED;
	error = wanted_error(call, pid);
	if (error)
		return error;
	snprintf(key, sizeof(key), "%s.delay_ms", names[call]);
	pause_ms(settings_number(key, 0));
	stage(call, "before", pid);
	*target = find(pid);
	return *target ? SUCCESS : NOT_INITIALIZED;
}

static int end(enum call call, int pid, struct simulated *target, int result)
{
	if (target) {
		munmap(target, sizeof(*target));
		stage(call, "after", pid);
	}
	return result;
}

/* Be the only caller of this process. A caller that died leaves its place, and its request is answered all the same. */
static bool take_place(struct simulated *target, int pid)
{
	int32_t self = (int32_t)syscall(SYS_gettid), holder = 0;

	while (!atomic_compare_exchange_strong((_Atomic int32_t *)&target->caller, &holder, self)) {
		if (!alive(pid))
			return false;
		if (holder && !alive(holder) &&
		    atomic_compare_exchange_strong((_Atomic int32_t *)&target->caller, &holder, self))
			break;
		holder = 0;
		pause_ms(1);
	}
	return true;
}

static bool await_answer(struct simulated *target, int pid)
{
	struct timespec look = {.tv_nsec = LOOK_NS};
	uint32_t answered;

	while ((answered = atomic_load((_Atomic uint32_t *)&target->answered)) != target->asked) {
		if (!alive(pid))
			return false;
		syscall(SYS_futex, &target->answered, FUTEX_WAIT, answered, &look, NULL, 0);
	}
	return true;
}

static int ask(struct simulated *target, int pid, enum action action)
{
	int result = OPERATING_SYSTEM;

	target->action = action;
	atomic_fetch_add((_Atomic uint32_t *)&target->asked, 1);
	syscall(SYS_futex, &target->asked, FUTEX_WAKE, 1, NULL, NULL, 0);
	if (await_answer(target, pid))
		result = target->result;
	return result;
}

static int request(enum call call, int pid, enum action action, uint32_t timeout_ms, const struct gpu_pair *pairs, uint32_t count)
{
	struct simulated *target;
	int result = begin(call, pid, &target);

	if (result != SUCCESS)
		return end(call, pid, target, result);
	if (count > SIMULATED_MAX_DEVICES)
		return end(call, pid, target, INVALID_VALUE);
	result = OPERATING_SYSTEM;
	if (take_place(target, pid)) {
		if (await_answer(target, pid)) {
			target->timeout_ms = timeout_ms;
			target->pair_count = count;
			if (count)
				memcpy(target->pairs, pairs, count * sizeof(*pairs));
			result = ask(target, pid, action);
		}
		atomic_store((_Atomic int32_t *)&target->caller, 0);
	}
	return end(call, pid, target, result);
}

/* The arguments as in cuda.h: 64 bytes each, of which only these are read. */
struct lock_arguments {
	unsigned timeout_ms;
	unsigned rest[15];
};

struct restore_arguments {
	const struct gpu_pair *pairs;
	unsigned count;
	unsigned rest[13];
};

int cuCheckpointProcessLock(int pid, const struct lock_arguments *arguments)
{
	return request(CALL_LOCK, pid, ACTION_LOCK, arguments ? arguments->timeout_ms : 0, NULL, 0);
}

int cuCheckpointProcessCheckpoint(int pid, const void *arguments)
{
	(void)arguments;
	return request(CALL_CHECKPOINT, pid, ACTION_CHECKPOINT, 0, NULL, 0);
}

int cuCheckpointProcessRestore(int pid, const struct restore_arguments *arguments)
{
	return request(CALL_RESTORE, pid, ACTION_RESTORE, 0, arguments ? arguments->pairs : NULL, arguments ? arguments->count : 0);
}

int cuCheckpointProcessUnlock(int pid, const void *arguments)
{
	(void)arguments;
	return request(CALL_UNLOCK, pid, ACTION_UNLOCK, 0, NULL, 0);
}

int cuCheckpointProcessGetState(int pid, int *state)
{
	struct simulated *target;
	int result = begin(CALL_STATE, pid, &target);

	if (result == SUCCESS)
		*state = (int)target->state;
	return end(CALL_STATE, pid, target, result);
}

int cuCheckpointProcessGetRestoreThreadId(int pid, int *thread)
{
	struct simulated *target;
	int result = begin(CALL_THREAD, pid, &target);

	if (result == SUCCESS)
		*thread = target->thread;
	return end(CALL_THREAD, pid, target, result);
}
