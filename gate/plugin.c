/* The boundary gate as an NCCL profiler plugin. NCCL loads it by NCCL_PROFILER_PLUGIN and calls it in the threads of the program.
 *
 * Read in NCCL 2.28.9: the group API event starts once per outermost group, in the calling thread, before any task of the group exists, and
 * stops after the group was launched (src/enqueue.cc: collTaskAppend, p2pTaskAppend; src/group.cc: ncclGroupEndInternal). It is the only
 * place where a thread is held. Nothing here may fail: a gate that does not work is open.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "chain.h"
#include "gate.h"
#include "nccl.h"

#define REGION_VARIABLE "SLURM_CKPT_GATE"
#define OWN_EVENTS (NCCL_EVENT_GROUP_API | NCCL_EVENT_COLL_API | NCCL_EVENT_P2P_API | NCCL_EVENT_P2P)
#define EXPORTED __attribute__((visibility("default")))

/* What NCCL gets as a communicator's context. own: NULL when the gate knows nothing of it. */
struct context {
  struct gate_own *own;
  void *next; /* the user's plugin's context */
  bool has_next;
};

/* One per version of the interface: NCCL uses one of them only. */
struct plugin {
  unsigned newest;
  const struct nccl_profiler *self;
  const struct nccl_profiler *next;
  unsigned next_version;
  int next_mask; /* the user's plugin keeps a pointer to it, and may change it at any time */
  int merged;    /* of next_mask, when it was looked at last */
  int *mask;     /* NCCL's own */
};

/* Handles of events that the user's plugin has no handle for: of groups, and of sends and receives. As parents the latter tell what was
 * captured into a graph. */
static char own_group, own_event, own_captured;

static struct {
  pthread_once_t once;
  struct gate gate;
  bool attached;
  _Atomic bool passive; /* in a child that was forked: it is no rank */
} process = {.once = PTHREAD_ONCE_INIT};

static __thread struct {
  uint32_t id;
  struct gate_group group;
  void *handle; /* of the group API event, while it is open */
  bool is_open;
  bool is_captured;
  unsigned same; /* open events of this thread with the very same handle: the user's plugin may have one for all */
} thread;

static void become_passive(void) { atomic_store(&process.passive, true); }

static void prepare_process(void) {
  const char *path = getenv(REGION_VARIABLE);
  process.attached = path != NULL && gate_attach(&process.gate, path, (uint32_t)getpid()) == 0;
  pthread_atfork(NULL, NULL, become_passive);
}

static struct gate *active_gate(void) {
  return process.attached && !atomic_load_explicit(&process.passive, memory_order_relaxed) ? &process.gate : NULL;
}

static uint32_t thread_id(void) {
  if (thread.id == 0)
    thread.id = (uint32_t)syscall(SYS_gettid);
  return thread.id;
}

static void merge_masks(struct plugin *plugin) {
  int wanted = (int)chain_mask(__atomic_load_n(&plugin->next_mask, __ATOMIC_RELAXED), plugin->next_version);
  if (plugin->mask != NULL && wanted != plugin->merged) {
    plugin->merged = wanted;
    __atomic_store_n(plugin->mask, wanted | OWN_EVENTS, __ATOMIC_RELAXED);
  }
}

static void load_next(struct plugin *plugin, nccl_logger log) {
  enum chain_result result = chain_load(plugin->newest, plugin->self, &plugin->next, &plugin->next_version);
  if (result != CHAIN_LOADED)
    plugin->next = NULL;
  if (result == CHAIN_LOST && process.attached)
    atomic_fetch_or(&process.gate.region->header.notes, GATE_NOTE_CHAIN_LOST);
  if (result == CHAIN_LOST && log != NULL)
    log(NCCL_LOG_WARN, NCCL_SUBSYSTEM_INIT, __FILE__, __LINE__, "slurmckpt: the profiler plugin %s has no interface v5, v6 or v7 and is left out",
        getenv(CHAIN_VARIABLE) != NULL ? getenv(CHAIN_VARIABLE) : "libnccl-profiler.so");
}

static nccl_result init(struct plugin *plugin, void **context, uint64_t communicator, int *mask, const char *name, int nodes, int ranks,
                        int rank, nccl_logger log) {
  static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
  struct context *made = calloc(1, sizeof(*made));
  *context = made;
  if (made == NULL)
    goto out;
  pthread_once(&process.once, prepare_process);
  pthread_mutex_lock(&loading);
  if (plugin->mask == NULL)
    load_next(plugin, log);
  plugin->mask = mask;
  if (plugin->next != NULL)
    made->has_next = plugin->next->init(&made->next, communicator, &plugin->next_mask, name, nodes, ranks, rank, log) == NCCL_SUCCESS;
  plugin->merged = (int)chain_mask(__atomic_load_n(&plugin->next_mask, __ATOMIC_RELAXED), plugin->next_version);
  __atomic_store_n(mask, plugin->merged | (active_gate() != NULL ? OWN_EVENTS : 0), __ATOMIC_RELAXED);
  pthread_mutex_unlock(&loading);
  if (active_gate() != NULL && ranks > 1 && rank >= 0 && rank < ranks)
    made->own = gate_join(&process.gate, communicator, (uint32_t)ranks, (uint32_t)rank);
  if (made->own != NULL)
    gate_admit(&process.gate, made->own);
out:
  return NCCL_SUCCESS;
}

static nccl_result finalize(struct plugin *plugin, void *context) {
  struct context *mine = context;
  if (mine != NULL) {
    if (mine->has_next)
      plugin->next->finalize(mine->next);
    if (mine->own != NULL && active_gate() != NULL)
      gate_leave(&process.gate, mine->own);
    free(mine);
  }
  return NCCL_SUCCESS;
}

static bool is_ours(const void *handle) { return handle == &own_group || handle == &own_event || handle == &own_captured; }

/* What the user's plugin is told; returns its handle. */
static void *forward(struct plugin *plugin, const struct context *context, struct nccl_event *event) {
  void *handle = NULL, *parent = event->parent;
  if (context->has_next && chain_wants((unsigned)plugin->merged, event->type)) {
    if (is_ours(parent))
      event->parent = NULL;
    if (plugin->next->start_event(context->next, &handle, event) != NCCL_SUCCESS)
      handle = NULL;
    event->parent = parent;
  }
  return handle;
}

/* A send or receive is being launched: now its peer is known. What is launched by the replay of a graph is not counted, and neither is what
 * is captured. The parent tells, but for a plugin that gave a handle of its own. */
static void peer_known(struct gate *gate, struct gate_own *own, const struct nccl_event *event) {
  if (event->parent == &own_captured || (thread.is_open && thread.is_captured) || event->p2p.function == NULL)
    return;
  if (event->parent != &own_event && !thread.is_open && atomic_load(&own->shared->deferred) == 0)
    return;
  gate_peer(gate, own, strcmp(event->p2p.function, "Send") == 0 ? GATE_SEND : GATE_RECEIVE, (uint32_t)event->p2p.peer,
            thread.is_open);
}

static void pass_gate(struct gate *gate, const struct context *context, struct nccl_event *event) {
  struct gate_own *own = context->own;
  switch (event->type) {
  case NCCL_EVENT_GROUP_API:
    if (!event->group_api.captured && thread.group.entered == NULL)
      gate_enter(gate, &thread.group, own, thread_id());
    break;
  case NCCL_EVENT_COLL_API:
    if (event->coll_api.captured)
      gate_captured(own);
    else
      gate_collective(gate, own, event->coll_api.function, event->coll_api.count);
    break;
  case NCCL_EVENT_P2P_API:
    if (event->p2p_api.captured)
      gate_captured(own);
    else
      gate_transfer(gate, &thread.group, own, event->p2p_api.function, event->p2p_api.count);
    break;
  case NCCL_EVENT_P2P:
    peer_known(gate, own, event);
    break;
  default:
    break;
  }
}

static nccl_result start_event(struct plugin *plugin, void *context, void **handle, struct nccl_event *event) {
  const struct context *mine = context;
  struct gate *gate = active_gate();
  bool is_captured = (event->type == NCCL_EVENT_GROUP_API && event->group_api.captured) ||
                     (event->type == NCCL_EVENT_P2P_API && event->p2p_api.captured);
  *handle = NULL;
  if (mine == NULL)
    goto out;
  if (gate != NULL && mine->own != NULL)
    pass_gate(gate, mine, event);
  if (plugin->next != NULL) {
    merge_masks(plugin);
    *handle = forward(plugin, mine, event);
  }
  if (thread.is_open && *handle != NULL && *handle == thread.handle)
    thread.same++;
  if (*handle == NULL && event->type == NCCL_EVENT_GROUP_API)
    *handle = &own_group;
  else if (*handle == NULL && event->type == NCCL_EVENT_P2P_API)
    *handle = is_captured ? &own_captured : &own_event;
  if (event->type == NCCL_EVENT_GROUP_API) {
    thread.is_open = true;
    thread.is_captured = is_captured;
    thread.handle = *handle;
    thread.same = 0;
  }
out:
  return NCCL_SUCCESS;
}

/* Of a group only once it is launched: until then its thread is inside, whatever of it has been stopped already. */
static nccl_result stop_event(struct plugin *plugin, void *handle) {
  bool is_group = thread.is_open && handle == thread.handle && thread.same == 0;
  if (thread.is_open && handle == thread.handle && thread.same > 0)
    thread.same--;
  if (is_group) {
    gate_exit(&thread.group);
    thread.is_open = false;
    thread.handle = NULL;
  }
  return plugin->next != NULL && !is_ours(handle) ? plugin->next->stop_event(handle) : NCCL_SUCCESS;
}

static nccl_result record_event_state(struct plugin *plugin, void *handle, int state, void *arguments) {
  return plugin->next != NULL && !is_ours(handle) ? plugin->next->record_event_state(handle, state, arguments) : NCCL_SUCCESS;
}

#define EXPORT_VERSION(N)                                                                                                                     \
  static struct plugin plugin_v##N;                                                                                                           \
  static nccl_result init_v##N(void **context, uint64_t communicator, int *mask, const char *name, int nodes, int ranks, int rank,            \
                               nccl_logger log) {                                                                                             \
    return init(&plugin_v##N, context, communicator, mask, name, nodes, ranks, rank, log);                                                    \
  }                                                                                                                                           \
  static nccl_result start_event_v##N(void *context, void **handle, struct nccl_event *event) {                                               \
    return start_event(&plugin_v##N, context, handle, event);                                                                                 \
  }                                                                                                                                           \
  static nccl_result stop_event_v##N(void *handle) { return stop_event(&plugin_v##N, handle); }                                               \
  static nccl_result record_event_state_v##N(void *handle, int state, void *arguments) {                                                      \
    return record_event_state(&plugin_v##N, handle, state, arguments);                                                                        \
  }                                                                                                                                           \
  static nccl_result finalize_v##N(void *context) { return finalize(&plugin_v##N, context); }                                                 \
  EXPORTED const struct nccl_profiler ncclProfiler_v##N = {                                                                                   \
      "slurmckpt", init_v##N, start_event_v##N, stop_event_v##N, record_event_state_v##N, finalize_v##N,                                       \
  };                                                                                                                                          \
  static struct plugin plugin_v##N = {.newest = N, .self = &ncclProfiler_v##N};

EXPORT_VERSION(5)
EXPORT_VERSION(6)
EXPORT_VERSION(7)
