/* Profiler plugins. The masks, the parents and the order are NCCL's; what NCCL leaves unset is unset here. */
#include "profiler.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "reduce.h"
#include "world.h"

enum {
  GROUP = 1 << 0,
  COLL = 1 << 1,
  P2P = 1 << 2,
  PROXY_OP = 1 << 3,
  PROXY_STEP = 1 << 4,
  KERNEL_CH = 1 << 6,
  NET_PLUGIN = 1 << 7,
  GROUP_API = 1 << 8,
  COLL_API = 1 << 9,
  P2P_API = 1 << 10,
  KERNEL_LAUNCH = 1 << 11,
  V5 = (1 << 12) - 1,
  CE = 7 << 12,
  KERNEL_PHASE = 1 << 15,
  OF_OPERATIONS = PROXY_OP | PROXY_STEP | KERNEL_CH | NET_PLUGIN,
  OF_TASKS = GROUP | COLL | P2P | OF_OPERATIONS,
};
enum { GROUP_START_API_STOP = 23, GROUP_END_API_START = 24 };

/* ncclProfilerEventDescr_v5_t; v6 adds members to the union, v7 to the members. */
struct event {
  uint64_t type;
  void *parent;
  int rank;
  union {
    struct {
      bool captured;
      int depth;
    } group_api;
    struct {
      const char *function;
      size_t count;
      const char *datatype;
      int root;
      void *stream;
      bool captured;
    } coll_api;
    struct {
      const char *function;
      size_t count;
      const char *datatype;
      void *stream;
      bool captured;
    } p2p_api;
    struct {
      void *stream;
    } kernel_launch;
    struct {
      uint64_t sequence;
      const char *function;
      const void *send_buffer;
      void *receive_buffer;
      size_t count;
      int root;
      const char *datatype;
      uint8_t channels;
      uint8_t warps;
      const char *algorithm;
      const char *protocol;
      void *parent_group;
    } coll;
    struct {
      const char *function;
      void *buffer;
      const char *datatype;
      size_t count;
      int peer;
      uint8_t channels;
      void *parent_group;
    } p2p;
    char room[256];
  };
};

struct plugin {
  const char *name;
  int (*init)(void **context, uint64_t hash, int *mask, const char *name, int nodes, int ranks, int rank, void *log);
  int (*start)(void *context, void **handle, struct event *event);
  int (*stop)(void *handle);
  int (*record)(void *handle, int state, void *arguments);
  int (*finalize)(void *context);
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void *library;
static const struct plugin *plugin;
static int version, plugin_version;
static unsigned users;
static bool failed;
static int event_mask;

static __thread struct {
  int depth;
  int mask;
  enum { RESET, STARTED, STOPPED } state;
  void *group_api;
  void *p2p_api;
  void *coll_api;
} thread;

static void log_line(int level, unsigned long subsystems, const char *file, int line, const char *format, ...) {
  (void)level, (void)subsystems, (void)file, (void)line, (void)format;
}

static void *open_library(const char *name) {
  char path[300];
  void *opened = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (opened == NULL && strchr(name, '/') == NULL) {
    snprintf(path, sizeof(path), "libnccl-profiler-%s.so", name);
    opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  }
  return opened;
}

static void load(void) {
  const char *name = getenv("NCCL_PROFILER_PLUGIN"), *newest = getenv("NCCL_DOUBLE_PROFILER");
  char symbol[32];
  if (name == NULL || strcasecmp(name, "none") != 0)
    library = open_library(name != NULL && name[0] != '\0' ? name : "libnccl-profiler.so");
  version = newest != NULL ? atoi(newest) : 7;
  for (plugin_version = version; library != NULL && plugin == NULL && plugin_version >= 5; plugin_version--) {
    snprintf(symbol, sizeof(symbol), "ncclProfiler_v%d", plugin_version);
    plugin = dlsym(library, symbol);
    if (plugin != NULL)
      break;
  }
  if (plugin == NULL) {
    if (library != NULL)
      dlclose(library);
    library = NULL;
    failed = true;
  }
}

void profiler_init(struct ncclComm *comm) {
  pthread_mutex_lock(&mutex);
  if (plugin == NULL && !failed)
    load();
  if (plugin != NULL)
    users++;
  pthread_mutex_unlock(&mutex);
  if (plugin != NULL) {
    plugin->init(&comm->profiler, comm->hash, &event_mask, NULL, 1, comm->ranks, comm->rank, log_line);
    /* What the translation for older plugins takes away, and what v7 of NCCL adds. */
    if (plugin_version < version)
      event_mask &= plugin_version == 5 ? V5 : V5 | CE;
    if (version >= 7 && (event_mask & KERNEL_PHASE))
      event_mask |= KERNEL_CH;
  }
}

void profiler_finalize(struct ncclComm *comm) {
  if (plugin != NULL && comm->profiler != NULL)
    plugin->finalize(comm->profiler);
  pthread_mutex_lock(&mutex);
  if (plugin != NULL && --users == 0) {
    dlclose(library);
    library = NULL;
    plugin = NULL;
  }
  pthread_mutex_unlock(&mutex);
}

void profiler_call_begins(void) {
  if (thread.depth > 0)
    thread.depth++;
}

static void record(int state) {
  bool now = false;
  if (state == GROUP_START_API_STOP && thread.state == STARTED) {
    thread.state = STOPPED;
    now = true;
  } else if (state == GROUP_END_API_START && thread.state == STOPPED) {
    thread.state = RESET;
    now = true;
  }
  if (now && plugin != NULL && thread.group_api != NULL)
    plugin->record(thread.group_api, state, NULL);
}

void profiler_group_starts(const struct ncclComm *comm, int depth, bool captured) {
  struct event event = {.type = GROUP_API};
  event.group_api.captured = captured;
  thread.mask = __atomic_load_n(&event_mask, __ATOMIC_RELAXED);
  if (plugin != NULL && (thread.mask & (GROUP_API | P2P_API | COLL_API | KERNEL_LAUNCH | OF_TASKS | (version >= 6 ? CE : 0))) && thread.depth == 0) {
    event.group_api.depth = depth;
    plugin->start(comm->profiler, &thread.group_api, &event);
    thread.depth = depth;
    thread.state = STARTED;
  }
  record(GROUP_START_API_STOP);
}

void profiler_group_ends(void) {
  if (thread.depth > 0)
    thread.depth--;
  if (thread.depth == 0)
    record(GROUP_END_API_START);
}

void profiler_group_is_launched(void) {
  if (plugin != NULL && thread.group_api != NULL && thread.depth == 0) {
    plugin->stop(thread.group_api);
    thread.group_api = NULL;
  }
}

void *profiler_collective(const struct ncclComm *comm, const struct collective *collective, cudaStream_t stream, bool captured) {
  struct event event = {.type = COLL_API, .parent = thread.group_api};
  event.coll_api.function = collective->name;
  event.coll_api.count = collective->count;
  event.coll_api.datatype = type_name(collective->type);
  event.coll_api.root = collective->root;
  event.coll_api.stream = stream;
  event.coll_api.captured = captured;
  if (plugin != NULL && (thread.mask & (COLL_API | COLL | OF_OPERATIONS | (version >= 6 ? CE : 0))))
    plugin->start(comm->profiler, &thread.coll_api, &event);
  /* NCCL 2.28.9 stops it, and keeps the handle. */
  if (plugin != NULL && thread.coll_api != NULL)
    plugin->stop(thread.coll_api);
  return thread.coll_api;
}

void *profiler_transfer(const struct ncclComm *comm, const struct transfer *transfer, cudaStream_t stream, bool captured) {
  struct event event = {.type = P2P_API, .parent = thread.group_api};
  event.p2p_api.function = transfer->sends ? "Send" : "Recv";
  event.p2p_api.count = transfer->count;
  event.p2p_api.datatype = transfer->type_name;
  event.p2p_api.stream = stream;
  event.p2p_api.captured = captured;
  if (plugin != NULL && (thread.mask & (P2P_API | P2P | OF_OPERATIONS)))
    plugin->start(comm->profiler, &thread.p2p_api, &event);
  void *handle = thread.p2p_api;
  if (plugin != NULL && thread.p2p_api != NULL)
    plugin->stop(thread.p2p_api);
  thread.p2p_api = NULL;
  return handle;
}

int profiler_mask(void) { return thread.mask; }

void *profiler_group_handle(void) { return thread.group_api; }

void profiler_launch(struct kernel *kernel) {
  struct event event = {.type = KERNEL_LAUNCH, .parent = kernel->group_api_event};
  void *handle = NULL;
  event.kernel_launch.stream = kernel->stream;
  if (plugin != NULL && (kernel->mask & KERNEL_LAUNCH)) {
    plugin->start(kernel->comm->profiler, &handle, &event);
    if (handle != NULL)
      plugin->stop(handle);
  }
}

static void start_collective(struct kernel *kernel, void *group) {
  struct collective *collective = &kernel->collective;
  struct event event = {.type = COLL, .parent = collective->api_event, .rank = kernel->comm->rank};
  event.coll.parent_group = group;
  event.coll.function = collective->name;
  event.coll.count = collective->count;
  event.coll.root = collective->root;
  event.coll.datatype = type_name(collective->type);
  event.coll.algorithm = "DOUBLE";
  event.coll.protocol = "DOUBLE";
  collective->event = NULL;
  if (kernel->mask & (COLL | OF_OPERATIONS))
    plugin->start(kernel->comm->profiler, &collective->event, &event);
}

static void start_transfer(struct kernel *kernel, struct transfer *transfer, void *group) {
  struct event event = {.type = P2P, .parent = transfer->api_event, .rank = kernel->comm->rank};
  event.p2p.parent_group = group;
  event.p2p.function = transfer->sends ? "Send" : "Recv";
  event.p2p.buffer = transfer->buffer;
  event.p2p.count = transfer->count;
  event.p2p.datatype = transfer->type_name;
  event.p2p.peer = transfer->peer;
  transfer->event = NULL;
  if (kernel->mask & (P2P | OF_OPERATIONS))
    plugin->start(kernel->comm->profiler, &transfer->event, &event);
}

void profiler_tasks(struct kernel *kernel) {
  struct event event = {.type = GROUP};
  void *group = NULL;
  if (plugin == NULL)
    return;
  if (kernel->mask & OF_TASKS)
    plugin->start(kernel->comm->profiler, &group, &event);
  if (kernel->kind == KERNEL_COLLECTIVE)
    start_collective(kernel, group);
  for (size_t i = 0; i < kernel->transfer_count; i++)
    start_transfer(kernel, &kernel->transfers[i], group);
  if (kernel->kind == KERNEL_COLLECTIVE && kernel->collective.event != NULL)
    plugin->stop(kernel->collective.event);
  for (size_t i = 0; i < kernel->transfer_count; i++) {
    if (kernel->transfers[i].event != NULL)
      plugin->stop(kernel->transfers[i].event);
  }
  if (group != NULL)
    plugin->stop(group);
}
