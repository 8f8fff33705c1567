/* The simulated device of one process: streams, each drained by a thread of its own. */
#ifndef NCCL_DOUBLE_DEVICE_H
#define NCCL_DOUBLE_DEVICE_H

#include <stdbool.h>

#include "double.h"

struct ncclComm;
struct kernel;

enum kernel_kind { KERNEL_COLLECTIVE, KERNEL_TRANSFERS };

/* One send or receive of a kernel of transfers. */
struct transfer {
  bool sends;
  int peer;
  char *buffer;
  size_t bytes;
  const char *type_name;
  size_t count;
  void *api_event;
  void *event;
  /* While it runs. */
  size_t moved;
  bool in_flight;
  bool done;
};

enum collective_kind { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER };

struct collective {
  enum collective_kind kind;
  const char *name;
  const char *send;
  char *receive;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  void *api_event;
  void *event;
};

struct kernel {
  struct kernel *next;
  struct ncclComm *comm;
  cudaStream_t stream;
  enum kernel_kind kind;
  unsigned long number; /* on its communicator, whose kernels run in this order */
  bool persistent;      /* of a graph */
  bool late_events;     /* its task events come from the driver's callback */
  int mask;
  void *group_api_event;
  struct collective collective;
  struct transfer *transfers;
  size_t transfer_count;
};

/* Takes the kernel. A stream that is being captured keeps it for its graph. */
void device_enqueue(struct kernel *kernel);
bool device_is_capturing(cudaStream_t stream);
struct kernel *kernel_copy(const struct kernel *kernel);
void kernel_free(struct kernel *kernel);

/* Held by every call that enqueues: a locked process waits here. */
void device_api_begin(void);
void device_api_end(void);

/* Waits until nothing of the communicator is under way. */
void device_drain(struct ncclComm *comm);

/* In execute.c. */
void kernel_execute(struct kernel *kernel);

#endif
