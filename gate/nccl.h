/* The binary interface between NCCL and a profiler plugin, as far as the gate needs it. Definitions of our own, after
 * src/include/plugin/profiler/profiler_v5.h (NCCL 2.28.3 to 2.30.7: unchanged), profiler_v6.h (2.29.2 to 2.31.2: unchanged, adds members to
 * the union only) and profiler_v7.h (2.31.2: appends members to those of the union), src/include/plugin/nccl_profiler.h and
 * src/include/nccl_common.h.
 */
#ifndef SLURMCKPT_GATE_NCCL_H
#define SLURMCKPT_GATE_NCCL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int nccl_result; /* ncclResult_t */
enum { NCCL_SUCCESS = 0 };

typedef void (*nccl_logger)(int level, unsigned long subsystems, const char *file, int line, const char *format, ...);
enum { NCCL_LOG_WARN = 2, NCCL_LOG_INFO = 3 };
#define NCCL_SUBSYSTEM_INIT 1ul

enum nccl_event_type {
  NCCL_EVENT_GROUP = 1 << 0,
  NCCL_EVENT_COLL = 1 << 1,
  NCCL_EVENT_P2P = 1 << 2,
  NCCL_EVENT_PROXY_OP = 1 << 3,
  NCCL_EVENT_PROXY_STEP = 1 << 4,
  NCCL_EVENT_PROXY_CTRL = 1 << 5,
  NCCL_EVENT_KERNEL_CH = 1 << 6,
  NCCL_EVENT_NET_PLUGIN = 1 << 7,
  NCCL_EVENT_GROUP_API = 1 << 8,
  NCCL_EVENT_COLL_API = 1 << 9,
  NCCL_EVENT_P2P_API = 1 << 10,
  NCCL_EVENT_KERNEL_LAUNCH = 1 << 11,
  NCCL_EVENT_V5 = (1 << 12) - 1, /* all of the above */
  /* Of v6: collectives by copy engines. */
  NCCL_EVENT_CE_COLL = 1 << 12,
  NCCL_EVENT_CE_SYNC = 1 << 13,
  NCCL_EVENT_CE_BATCH = 1 << 14,
  NCCL_EVENT_CE = NCCL_EVENT_CE_COLL | NCCL_EVENT_CE_SYNC | NCCL_EVENT_CE_BATCH,
  NCCL_EVENT_V6 = NCCL_EVENT_V5 | NCCL_EVENT_CE,
  /* Of v7. */
  NCCL_EVENT_KERNEL_PHASE = 1 << 15,
  NCCL_EVENT_V7 = NCCL_EVENT_V6 | NCCL_EVENT_KERNEL_PHASE,
};

/* The beginning of an event's description, the same in v5, v6 and v7. */
struct nccl_event {
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
      const char *function;
      void *buffer;
      const char *datatype;
      size_t count;
      int peer;
      uint8_t channels;
      void *parent_group;
    } p2p;
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
  };
};

_Static_assert(offsetof(struct nccl_event, group_api) == 24, "as NCCL's");

struct nccl_profiler {
  const char *name;
  nccl_result (*init)(void **context, uint64_t communicator, int *mask, const char *name, int nodes, int ranks, int rank, nccl_logger log);
  nccl_result (*start_event)(void *context, void **handle, struct nccl_event *event);
  nccl_result (*stop_event)(void *handle);
  nccl_result (*record_event_state)(void *handle, int state, void *arguments);
  nccl_result (*finalize)(void *context);
};

#endif
