/* Groups. Of each communicator, the collectives are launched one by one, then all sends and receives as one kernel. */
#include "group.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "profiler.h"
#include "world.h"

static __thread struct {
  int depth;
  bool failed;
  struct kernel *first;
  struct kernel **last;
} group;

/* NCCL_DOUBLE_HOST_CALLBACK=1: task events come from the thread of the stream when the kernel begins, as NCCL does it with proxies while
 * graphs exist. */
static bool host_callback;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void read_environment(void) {
  const char *value = getenv("NCCL_DOUBLE_HOST_CALLBACK");
  host_callback = value != NULL && strcmp(value, "1") == 0;
}

static struct kernel *add_kernel(struct ncclComm *comm, cudaStream_t stream, enum kernel_kind kind) {
  struct kernel *kernel = calloc(1, sizeof(*kernel));
  kernel->comm = comm;
  kernel->stream = stream;
  kernel->kind = kind;
  kernel->mask = profiler_mask();
  kernel->group_api_event = profiler_group_handle();
  if (group.first == NULL)
    group.last = &group.first;
  *group.last = kernel;
  group.last = &kernel->next;
  return kernel;
}

void group_add_collective(struct ncclComm *comm, cudaStream_t stream, struct collective collective) {
  bool captured = device_is_capturing(stream);
  profiler_group_starts(comm, group.depth, captured);
  collective.api_event = profiler_collective(comm, &collective, stream, captured);
  add_kernel(comm, stream, KERNEL_COLLECTIVE)->collective = collective;
}

static struct kernel *transfers_of(const struct ncclComm *comm) {
  struct kernel *kernel = group.first;
  while (kernel != NULL && (kernel->comm != comm || kernel->kind != KERNEL_TRANSFERS))
    kernel = kernel->next;
  return kernel;
}

void group_add_transfer(struct ncclComm *comm, cudaStream_t stream, struct transfer transfer) {
  bool captured = device_is_capturing(stream);
  profiler_group_starts(comm, group.depth, captured);
  transfer.api_event = profiler_transfer(comm, &transfer, stream, captured);
  struct kernel *kernel = transfers_of(comm);
  if (kernel == NULL)
    kernel = add_kernel(comm, stream, KERNEL_TRANSFERS);
  kernel->transfers = realloc(kernel->transfers, (kernel->transfer_count + 1) * sizeof(transfer));
  kernel->transfers[kernel->transfer_count++] = transfer;
}

/* NCCL drops what a rank sends to itself in place, before the events of its tasks. */
static void drop_in_place(struct kernel *kernel) {
  size_t kept = 0;
  int rank = kernel->comm->rank;
  for (size_t i = 0; i < kernel->transfer_count; i++) {
    struct transfer *send = &kernel->transfers[i];
    for (size_t j = 0; send->sends && send->peer == rank && !send->done && j < kernel->transfer_count; j++) {
      struct transfer *receive = &kernel->transfers[j];
      if (!receive->sends && receive->peer == rank && !receive->done) {
        receive->done = send->done = receive->buffer == send->buffer;
        break;
      }
    }
  }
  for (size_t i = 0; i < kernel->transfer_count; i++) {
    if (!kernel->transfers[i].done)
      kernel->transfers[kept++] = kernel->transfers[i];
  }
  kernel->transfer_count = kept;
}

static void launch(struct kernel *kernel) {
  kernel->persistent = device_is_capturing(kernel->stream);
  kernel->late_events = host_callback;
  drop_in_place(kernel);
  profiler_launch(kernel);
  if (!kernel->late_events)
    profiler_tasks(kernel);
  device_enqueue(kernel);
}

/* The collectives of all communicators first, then their sends and receives: the same order on all ranks. */
static void launch_all(void) {
  struct kernel *first = group.first;
  group.first = NULL;
  for (int kind = KERNEL_COLLECTIVE; kind <= KERNEL_TRANSFERS; kind++) {
    struct kernel *left = NULL, **last = &left;
    while (first != NULL) {
      struct kernel *kernel = first;
      first = kernel->next;
      kernel->next = NULL;
      if ((int)kernel->kind == kind) {
        launch(kernel);
      } else {
        *last = kernel;
        last = &kernel->next;
      }
    }
    first = left;
  }
}

static ncclResult_t start(void) {
  pthread_once(&once, read_environment);
  profiler_call_begins();
  group.depth++;
  return ncclSuccess;
}

static ncclResult_t end(void) {
  ncclResult_t result = ncclSuccess;
  if (group.depth == 0)
    return ncclInvalidUsage;
  profiler_group_ends();
  if (--group.depth == 0) {
    if (group.failed)
      result = ncclInvalidUsage;
    if (group.first != NULL) {
      device_api_begin();
      launch_all();
      device_api_end();
    }
    group.failed = false;
  }
  profiler_group_is_launched();
  return result;
}

ncclResult_t group_begin_call(struct ncclComm *comm) {
  if (comm == NULL)
    return ncclInvalidArgument;
  return atomic_load(&comm->aborted) ? ncclInvalidUsage : start();
}

ncclResult_t group_end_call(ncclResult_t result) {
  if (result != ncclSuccess)
    group.failed = true;
  ncclResult_t ended = end();
  return result != ncclSuccess ? result : ended;
}

ncclResult_t ncclGroupStart(void) { return start(); }

ncclResult_t ncclGroupEnd(void) { return end(); }
