/* The calling thread's group: operations are collected, and launched when the outermost group ends. */
#ifndef NCCL_DOUBLE_GROUP_H
#define NCCL_DOUBLE_GROUP_H

#include "device.h"

/* Between group_begin_call and group_end_call of one API function. A NULL or aborted communicator is refused. */
ncclResult_t group_begin_call(struct ncclComm *comm);
ncclResult_t group_end_call(ncclResult_t result);

void group_add_collective(struct ncclComm *comm, cudaStream_t stream, struct collective collective);
void group_add_transfer(struct ncclComm *comm, cudaStream_t stream, struct transfer transfer);

#endif
