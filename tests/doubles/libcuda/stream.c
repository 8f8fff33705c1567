#include "stream.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "memory.h"
#include "process.h"
#include "settings.h"

struct stream {
	struct stream *next;
	struct work *first;
	bool busy;
};

/*
 * What all processes of a machine meet at: as memory of a peer that is mapped through NVLink. Each member writes the round it has reached
 * into a slot of its own, so that members that are killed and go back to an earlier round find nothing that stops them.
 */
#define MAX_MEMBERS 64

struct meeting {
	_Atomic uint32_t reached[MAX_MEMBERS];
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct stream *streams, *standard;

enum kernel stream_kernel(const char *name)
{
	if (!strcmp(name, "add_u32"))
		return KERNEL_ADD;
	if (!strcmp(name, "wait_ms"))
		return KERNEL_WAIT;
	return strcmp(name, "meet") ? KERNEL_NONE : KERNEL_MEET;
}

static void pause_ms(long ms)
{
	struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

	nanosleep(&time, NULL);
}

static void add_u32(uint64_t pointer, uint64_t count, uint32_t summand)
{
	uint32_t part[4096];

	for (uint64_t done = 0; done < count; done += sizeof(part) / sizeof(*part)) {
		uint64_t left = count - done, many = left < 4096 ? left : 4096;

		if (memory_read(pointer + done * 4, part, many * 4) != SUCCESS)
			return;
		for (uint64_t i = 0; i < many; i++)
			part[i] += summand;
		memory_write(pointer + done * 4, part, many * 4);
	}
}

static struct meeting *meeting_map(uint64_t key)
{
	struct meeting *place = MAP_FAILED;
	char path[512];
	int file;

	snprintf(path, sizeof(path), "%s/meeting-%llu", settings_directory(), (unsigned long long)key);
	file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
	if (file >= 0) {
		fchmod(file, 0666);
		if (!ftruncate(file, sizeof(*place)))
			place = mmap(NULL, sizeof(*place), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		close(file);
	}
	return place == MAP_FAILED ? NULL : place;
}

static void meet(uint64_t key, uint32_t members, uint32_t member, uint32_t round)
{
	struct meeting *place = meeting_map(key);

	if (!place || members > MAX_MEMBERS || member >= members)
		abort();
	atomic_store(&place->reached[member], round);
	for (uint32_t each = 0; each < members; each++) {
		while (atomic_load(&place->reached[each]) < round)
			pause_ms(1);
	}
	munmap(place, sizeof(*place));
}

static void execute(const struct work *work)
{
	switch (work->kernel) {
	case KERNEL_ADD:
		add_u32(work->arguments[0], (uint32_t)work->arguments[1], (uint32_t)work->arguments[2]);
		break;
	case KERNEL_WAIT:
		pause_ms((long)(uint32_t)work->arguments[0]);
		break;
	case KERNEL_MEET:
		meet(work->arguments[0], (uint32_t)work->arguments[1], (uint32_t)work->arguments[2], (uint32_t)work->arguments[3]);
		break;
	case KERNEL_NONE:
		break;
	}
	if (work->host)
		work->host(work->host_data);
}

static void *work_off(void *argument)
{
	struct stream *stream = argument;

	pthread_mutex_lock(&mutex);
	for (;;) {
		while (!stream->first)
			pthread_cond_wait(&changed, &mutex);
		struct work *work = stream->first;

		stream->first = work->next;
		stream->busy = true;
		pthread_mutex_unlock(&mutex);
		execute(work);
		free(work);
		pthread_mutex_lock(&mutex);
		stream->busy = false;
		pthread_cond_broadcast(&changed);
	}
	return NULL;
}

static struct stream *start(void)
{
	struct stream *stream = calloc(1, sizeof(*stream));
	sigset_t all, before;
	pthread_t thread;

	if (!stream)
		return NULL;
	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, &before);
	if (pthread_create(&thread, NULL, work_off, stream)) {
		free(stream);
		stream = NULL;
	} else {
		pthread_detach(thread);
		stream->next = streams;
		streams = stream;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return stream;
}

struct stream *stream_find(uintptr_t handle)
{
	struct stream *found;

	pthread_mutex_lock(&mutex);
	if (handle <= 2 && !standard)
		standard = start();
	found = handle <= 2 ? standard : streams;
	while (handle > 2 && found && (uintptr_t)found != handle)
		found = found->next;
	pthread_mutex_unlock(&mutex);
	return found;
}

int stream_create(uintptr_t *handle)
{
	struct stream *stream;

	pthread_mutex_lock(&mutex);
	stream = start();
	pthread_mutex_unlock(&mutex);
	*handle = (uintptr_t)stream;
	return stream ? SUCCESS : OUT_OF_MEMORY;
}

int stream_submit(struct stream *stream, const struct work *work)
{
	struct work *copy = malloc(sizeof(*copy)), **last = &stream->first;

	if (!copy)
		return OUT_OF_MEMORY;
	*copy = *work;
	copy->next = NULL;
	pthread_mutex_lock(&mutex);
	while (*last)
		last = &(*last)->next;
	*last = copy;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&mutex);
	return SUCCESS;
}

static bool idle(const struct stream *stream)
{
	return !stream->busy && !stream->first;
}

static bool all_idle(void)
{
	bool all = true;

	for (struct stream *each = streams; each; each = each->next)
		all = all && idle(each);
	return all;
}

bool stream_is_idle(struct stream *stream)
{
	bool found;

	pthread_mutex_lock(&mutex);
	found = idle(stream);
	pthread_mutex_unlock(&mutex);
	return found;
}

bool stream_all_idle(void)
{
	bool found;

	pthread_mutex_lock(&mutex);
	found = all_idle();
	pthread_mutex_unlock(&mutex);
	return found;
}

int stream_synchronize(struct stream *stream)
{
	pthread_mutex_lock(&mutex);
	while (!idle(stream))
		pthread_cond_wait(&changed, &mutex);
	pthread_mutex_unlock(&mutex);
	return SUCCESS;
}

int stream_synchronize_all(void)
{
	pthread_mutex_lock(&mutex);
	while (!all_idle())
		pthread_cond_wait(&changed, &mutex);
	pthread_mutex_unlock(&mutex);
	return SUCCESS;
}
