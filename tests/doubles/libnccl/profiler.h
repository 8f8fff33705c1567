/* Profiler plugins: loaded, and called in the order of NCCL 2.28.9 (src/plugin/profiler.cc, enqueue.cc, group.cc). */
#ifndef NCCL_DOUBLE_PROFILER_H
#define NCCL_DOUBLE_PROFILER_H

#include <stdbool.h>

#include "device.h"

/* NCCL_DOUBLE_PROFILER: the newest version of the interface that is looked for, 5 (as NCCL 2.28) or 6 (as 2.30; the default). */
void profiler_init(struct ncclComm *comm);
void profiler_finalize(struct ncclComm *comm);

/* The calling thread's group. depth: of ncclGroupStart, with the implicit one of every call. */
void profiler_call_begins(void);
void profiler_group_starts(const struct ncclComm *comm, int depth, bool captured);
void profiler_group_ends(void);
void profiler_group_is_launched(void);

/* The API events of one operation: start and stop at once, as in NCCL. Returns the handle, which its task has as parent. */
void *profiler_collective(const struct ncclComm *comm, const struct collective *collective, cudaStream_t stream, bool captured);
void *profiler_transfer(const struct ncclComm *comm, const struct transfer *transfer, cudaStream_t stream, bool captured);

int profiler_mask(void);
void *profiler_group_handle(void);

/* Around and after the launch of a kernel: its own event, and those of its tasks. */
void profiler_launch(struct kernel *kernel);
void profiler_tasks(struct kernel *kernel);

#endif
