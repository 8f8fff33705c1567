/* Streams, graphs, and the lock. Simulated. */
#include "device.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "world.h"

struct double_stream {
  struct double_stream *next;
  pthread_t thread;
  struct kernel *first;
  struct kernel **last;
  bool capturing;
  bool busy;
};

struct double_graph {
  struct kernel *first;
};

/* One lock for all of it: nothing here takes long. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct double_stream *streams;
static struct double_stream *default_stream;
static bool locked;
static unsigned callers;

static void *drain(void *argument) {
  struct double_stream *stream = argument;
  pthread_mutex_lock(&mutex);
  for (;;) {
    struct kernel *kernel = stream->first;
    if (kernel == NULL || stream->capturing) {
      /* Said once: idle streams must not wake each other for ever. */
      if (stream->busy)
        pthread_cond_broadcast(&changed);
      stream->busy = false;
      pthread_cond_wait(&changed, &mutex);
      continue;
    }
    stream->busy = true;
    stream->first = kernel->next;
    if (stream->first == NULL)
      stream->last = &stream->first;
    while (kernel->comm->finished != kernel->number)
      pthread_cond_wait(&changed, &mutex);
    pthread_mutex_unlock(&mutex);
    kernel_execute(kernel);
    pthread_mutex_lock(&mutex);
    kernel->comm->finished++;
    kernel_free(kernel);
    pthread_cond_broadcast(&changed);
  }
  return NULL;
}

cudaStream_t double_stream_create(void) {
  struct double_stream *stream = calloc(1, sizeof(*stream));
  stream->last = &stream->first;
  pthread_mutex_lock(&mutex);
  stream->next = streams;
  streams = stream;
  pthread_mutex_unlock(&mutex);
  pthread_create(&stream->thread, NULL, drain, stream);
  pthread_detach(stream->thread);
  return stream;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static void create_default(void) { default_stream = double_stream_create(); }

static struct double_stream *resolve(cudaStream_t stream) {
  pthread_once(&once, create_default);
  return stream != NULL ? stream : default_stream;
}

static void append(struct double_stream *stream, struct kernel *kernel) {
  kernel->next = NULL;
  *stream->last = kernel;
  stream->last = &kernel->next;
}

/* The mutex is held. */
static void launch(struct double_stream *stream, struct kernel *kernel) {
  kernel->number = kernel->comm->launched++;
  stream->busy = true;
  append(stream, kernel);
  pthread_cond_broadcast(&changed);
}

void device_enqueue(struct kernel *kernel) {
  struct double_stream *stream = resolve(kernel->stream);
  pthread_mutex_lock(&mutex);
  if (stream->capturing)
    append(stream, kernel);
  else
    launch(stream, kernel);
  pthread_mutex_unlock(&mutex);
}

bool device_is_capturing(cudaStream_t stream) {
  struct double_stream *resolved = resolve(stream);
  pthread_mutex_lock(&mutex);
  bool capturing = resolved->capturing;
  pthread_mutex_unlock(&mutex);
  return capturing;
}

static bool is_idle(const struct double_stream *stream) { return stream->capturing || (stream->first == NULL && !stream->busy); }

void double_stream_synchronize(cudaStream_t stream) {
  struct double_stream *resolved = resolve(stream);
  pthread_mutex_lock(&mutex);
  while (!is_idle(resolved))
    pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
}

void double_capture_begin(cudaStream_t stream) {
  struct double_stream *resolved = resolve(stream);
  double_stream_synchronize(stream);
  pthread_mutex_lock(&mutex);
  resolved->capturing = true;
  pthread_mutex_unlock(&mutex);
}

struct double_graph *double_capture_end(cudaStream_t stream) {
  struct double_stream *resolved = resolve(stream);
  struct double_graph *graph = calloc(1, sizeof(*graph));
  pthread_mutex_lock(&mutex);
  graph->first = resolved->first;
  resolved->first = NULL;
  resolved->last = &resolved->first;
  resolved->capturing = false;
  pthread_mutex_unlock(&mutex);
  return graph;
}

void double_graph_launch(struct double_graph *graph, cudaStream_t stream) {
  struct double_stream *resolved = resolve(stream);
  device_api_begin();
  pthread_mutex_lock(&mutex);
  for (const struct kernel *kernel = graph->first; kernel != NULL; kernel = kernel->next)
    launch(resolved, kernel_copy(kernel));
  pthread_mutex_unlock(&mutex);
  device_api_end();
}

void device_api_begin(void) {
  pthread_mutex_lock(&mutex);
  while (locked)
    pthread_cond_wait(&changed, &mutex);
  callers++;
  pthread_mutex_unlock(&mutex);
}

void device_api_end(void) {
  pthread_mutex_lock(&mutex);
  callers--;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

void device_drain(struct ncclComm *comm) {
  pthread_mutex_lock(&mutex);
  while (comm->finished != comm->launched)
    pthread_cond_wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
}

static bool all_idle(void) {
  bool idle = callers == 0;
  for (const struct double_stream *stream = streams; stream != NULL; stream = stream->next)
    idle = idle && is_idle(stream);
  return idle;
}

int double_lock(int timeout_ms) {
  struct timespec end;
  int result = 0;
  clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += timeout_ms / 1000;
  end.tv_nsec += timeout_ms % 1000 * 1000000L;
  if (end.tv_nsec >= 1000000000L) {
    end.tv_nsec -= 1000000000L;
    end.tv_sec++;
  }
  pthread_mutex_lock(&mutex);
  locked = true;
  while (result == 0 && !all_idle()) {
    if (pthread_cond_timedwait(&changed, &mutex, &end) == ETIMEDOUT)
      result = 600;
  }
  if (result != 0)
    locked = false;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
  return result;
}

void double_unlock(void) {
  pthread_mutex_lock(&mutex);
  locked = false;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

struct kernel *kernel_copy(const struct kernel *kernel) {
  struct kernel *copy = malloc(sizeof(*copy));
  *copy = *kernel;
  if (kernel->transfer_count > 0) {
    copy->transfers = calloc(kernel->transfer_count, sizeof(*copy->transfers));
    memcpy(copy->transfers, kernel->transfers, kernel->transfer_count * sizeof(*copy->transfers));
  }
  return copy;
}

void kernel_free(struct kernel *kernel) {
  free(kernel->transfers);
  free(kernel);
}
