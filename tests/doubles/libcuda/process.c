#include "process.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "memory.h"
#include "settings.h"
#include "stream.h"

#define LOOK_MS 1

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static bool closed;
static int inside;
static struct simulated *shared;
static uint8_t uuids[SIMULATED_MAX_DEVICES][SIMULATED_UUID];
static int uuid_count;

struct simulated *process_shared(void)
{
	return shared;
}

int process_enter(void)
{
	/* a child of fork() has no CUDA state of its own */
	if (!shared || shared->pid != getpid())
		return NOT_INITIALIZED;
	pthread_mutex_lock(&gate);
	while (closed)
		pthread_cond_wait(&opened, &gate);
	inside++;
	pthread_mutex_unlock(&gate);
	return SUCCESS;
}

void process_leave(void)
{
	pthread_mutex_lock(&gate);
	inside--;
	pthread_mutex_unlock(&gate);
}

static void gate_set(bool close)
{
	pthread_mutex_lock(&gate);
	closed = close;
	pthread_cond_broadcast(&opened);
	pthread_mutex_unlock(&gate);
}

static bool nothing_under_way(void)
{
	bool nothing;

	pthread_mutex_lock(&gate);
	nothing = inside == 0;
	pthread_mutex_unlock(&gate);
	return nothing && stream_all_idle();
}

static long long now_ms(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

static int lock(uint32_t timeout_ms)
{
	struct timespec look = {.tv_nsec = LOOK_MS * 1000000L};
	long long end = now_ms() + timeout_ms;

	gate_set(true);
	while (!nothing_under_way()) {
		if (timeout_ms && now_ms() >= end) {
			gate_set(false);
			return NOT_READY;
		}
		nanosleep(&look, NULL);
	}
	return SUCCESS;
}

static void remember_devices(void)
{
	uuid_count = settings_devices();
	for (int device = 0; device < uuid_count; device++)
		settings_uuid(device, uuids[device]);
}

/* Each device that was held needs one here, and every one of the machine must be named where any is. */
static int check_pairs(void)
{
	uint8_t uuid[SIMULATED_UUID];
	int named = 0;

	if (settings_devices() != uuid_count)
		return INVALID_VALUE;
	if (!shared->pair_count)
		return SUCCESS;
	for (int device = 0; device < uuid_count; device++) {
		bool as_old = false, as_new = false;

		settings_uuid(device, uuid);
		for (uint32_t i = 0; i < shared->pair_count; i++) {
			as_old = as_old || !memcmp(shared->pairs[i].old, uuids[device], SIMULATED_UUID);
			as_new = as_new || !memcmp(shared->pairs[i].new, uuid, SIMULATED_UUID);
		}
		named += as_old && as_new;
	}
	return named == uuid_count ? SUCCESS : INVALID_VALUE;
}

static int restore(void)
{
	int result = check_pairs();

	if (result == SUCCESS)
		result = memory_put_back();
	if (result == SUCCESS) {
		memory_hold_devices();
		remember_devices();
	}
	return result;
}

static int perform(enum action action)
{
	int result = ILLEGAL_STATE;

	if (action == ACTION_LOCK && shared->state == STATE_RUNNING) {
		result = lock(shared->timeout_ms);
		shared->state = result == SUCCESS ? STATE_LOCKED : STATE_RUNNING;
	} else if (action == ACTION_CHECKPOINT && shared->state == STATE_LOCKED) {
		result = memory_take_out();
		if (result == SUCCESS)
			memory_drop_devices();
		else if (memory_put_back() != SUCCESS)
			shared->state = STATE_FAILED;
		if (result == SUCCESS)
			shared->state = STATE_CHECKPOINTED;
	} else if (action == ACTION_RESTORE && shared->state == STATE_CHECKPOINTED) {
		result = restore();
		if (result == SUCCESS)
			shared->state = STATE_LOCKED;
	} else if (action == ACTION_UNLOCK && shared->state == STATE_LOCKED) {
		shared->state = STATE_RUNNING;
		gate_set(false);
		result = SUCCESS;
	}
	return result;
}

static void *answer_requests(void *unused)
{
	(void)unused;
	shared->thread = (int32_t)syscall(SYS_gettid);
	for (;;) {
		uint32_t asked = atomic_load((_Atomic uint32_t *)&shared->asked);

		if (asked == shared->answered) {
			syscall(SYS_futex, &shared->asked, FUTEX_WAIT, asked, NULL, NULL, 0);
			continue;
		}
		shared->result = perform((enum action)shared->action);
		atomic_store((_Atomic uint32_t *)&shared->answered, asked);
		syscall(SYS_futex, &shared->answered, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	}
	return NULL;
}

/* The threads of a driver take no signals of the program. */
static int start_thread(void)
{
	sigset_t all, before;
	pthread_t thread;
	int failed;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	failed = pthread_create(&thread, NULL, answer_requests, NULL);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!failed)
		pthread_detach(thread);
	return failed ? OUT_OF_MEMORY : SUCCESS;
}

static int create(void)
{
	int file = memfd_create(SIMULATED_MEMFD, MFD_CLOEXEC);
	void *place = MAP_FAILED;

	if (file >= 0 && !ftruncate(file, sizeof(struct simulated)))
		place = mmap(NULL, sizeof(struct simulated), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (place == MAP_FAILED)
		return OUT_OF_MEMORY;
	shared = place;
	shared->pid = getpid();
	remember_devices();
	memory_hold_devices();
	shared->magic = SIMULATED_MAGIC;
	return start_thread();
}

int process_init(void)
{
	int result = SUCCESS;

	pthread_mutex_lock(&gate);
	if (!shared)
		result = create();
	else if (shared->pid != getpid())
		result = NOT_INITIALIZED;
	pthread_mutex_unlock(&gate);
	return result;
}
