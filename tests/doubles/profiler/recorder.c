/* A profiler plugin as a user would have one, for tests: writes down what NCCL tells it. Exports v5, and with -DVERSION=6 or 7 these as well.
 *
 * RECORDER_FILE: where to, one file per process (.PID is added). RECORDER_MASK: the events it asks for. RECORDER_HANDLES: "one": the same
 * handle for all events, as plugins may do; "none": none.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct event {
  uint64_t type;
  void *parent;
  int rank;
};

struct profiler {
  const char *name;
  int (*init)(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank, void *log);
  int (*start)(void *context, void **handle, struct event *event);
  int (*stop)(void *handle);
  int (*record)(void *handle, int state, void *arguments);
  int (*finalize)(void *context);
};

static FILE *file;
static long handles;
static char the_one;

static const char *setting(const char *name) {
  const char *value = getenv(name);
  return value != NULL ? value : "";
}

static long number(const void *handle) { return handle == &the_one ? -1 : (long)(intptr_t)handle; }

static int init(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank, void *log) {
  char path[4096];
  (void)hash, (void)name, (void)log;
  if (file == NULL) {
    snprintf(path, sizeof(path), "%s.%d", setting("RECORDER_FILE"), (int)getpid());
    file = fopen(path, "w");
    setvbuf(file, NULL, _IOLBF, 0);
  }
  *mask = atoi(setting("RECORDER_MASK"));
  *context = (void *)(intptr_t)(ranks * 100 + rank);
  fprintf(file, "init %d %d %d\n", nodes, ranks, rank);
  return 0;
}

static int start(void *context, void **handle, struct event *event) {
  *handle = NULL;
  if (strcmp(setting("RECORDER_HANDLES"), "one") == 0)
    *handle = &the_one;
  else if (strcmp(setting("RECORDER_HANDLES"), "none") != 0)
    *handle = (void *)(intptr_t)++handles;
  fprintf(file, "start %ld type %lu parent %ld rank %d handle %ld\n", (long)(intptr_t)context, (unsigned long)event->type, number(event->parent),
          event->rank, number(*handle));
  return 0;
}

static int stop(void *handle) {
  fprintf(file, "stop %ld\n", number(handle));
  return 0;
}

static int record(void *handle, int state, void *arguments) {
  (void)arguments;
  fprintf(file, "record %ld %d\n", number(handle), state);
  return 0;
}

static int finalize(void *context) {
  fprintf(file, "finalize %ld\n", (long)(intptr_t)context);
  return 0;
}

const struct profiler ncclProfiler_v5 = {"recorder", init, start, stop, record, finalize};
#if VERSION >= 6
const struct profiler ncclProfiler_v6 = {"recorder", init, start, stop, record, finalize};
#endif
#if VERSION >= 7
const struct profiler ncclProfiler_v7 = {"recorder", init, start, stop, record, finalize};
#endif
