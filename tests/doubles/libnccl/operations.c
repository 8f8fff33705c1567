/* The operations of the API. */
#include "group.h"
#include "reduce.h"
#include "world.h"

static ncclResult_t collective(struct ncclComm *comm, cudaStream_t stream, struct collective given) {
  ncclResult_t result = group_begin_call(comm);
  if (result != ncclSuccess)
    return result;
  if (type_size(given.type) == 0 || given.root < 0 || given.root >= comm->ranks) {
    result = ncclInvalidArgument;
  } else if (given.count > 0) {
    /* NCCL copies on a communicator of one rank, and tells the profiler nothing of it: as here. */
    if (comm->ranks > 1)
      group_add_collective(comm, stream, given);
    else if (given.send != given.receive)
      __builtin_memcpy(given.receive, given.send, given.count * type_size(given.type));
  }
  return group_end_call(result);
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  return collective(comm, stream, (struct collective){ALL_REDUCE, "AllReduce", send, receive, count, type, op, 0, NULL, NULL});
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return collective(comm, stream, (struct collective){REDUCE, "Reduce", send, receive, count, type, op, root, NULL, NULL});
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return collective(comm, stream, (struct collective){BROADCAST, "Broadcast", send, receive, count, type, ncclSum, root, NULL, NULL});
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, (struct collective){ALL_GATHER, "AllGather", send, receive, count, type, ncclSum, 0, NULL, NULL});
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  return collective(comm, stream, (struct collective){REDUCE_SCATTER, "ReduceScatter", send, receive, count, type, op, 0, NULL, NULL});
}

/* Within a call. Two buffers: what is sent is not written. */
static ncclResult_t add(struct ncclComm *comm, cudaStream_t stream, bool sends, const void *buffer, size_t count, ncclDataType_t type, int peer) {
  struct transfer transfer = {.sends = sends, .peer = peer, .buffer = (char *)(uintptr_t)buffer, .bytes = count * type_size(type)};
  transfer.count = count;
  transfer.type_name = type_name(type);
  if (type_size(type) == 0 || peer < 0 || peer >= comm->ranks)
    return ncclInvalidArgument;
  group_add_transfer(comm, stream, transfer);
  return ncclSuccess;
}

static ncclResult_t single(struct ncclComm *comm, cudaStream_t stream, bool sends, const void *buffer, size_t count, ncclDataType_t type, int peer) {
  ncclResult_t result = group_begin_call(comm);
  return result != ncclSuccess ? result : group_end_call(add(comm, stream, sends, buffer, count, type, peer));
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return single(comm, stream, true, send, count, type, peer);
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return single(comm, stream, false, receive, count, type, peer);
}

static const char *block(const void *buffer, size_t count, ncclDataType_t type, int rank) {
  return (const char *)buffer + (size_t)rank * count * type_size(type);
}

ncclResult_t ncclAlltoAll(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  ncclResult_t result = group_begin_call(comm);
  if (result != ncclSuccess)
    return result;
  for (int rank = 0; count > 0 && rank < comm->ranks && result == ncclSuccess; rank++) {
    result = add(comm, stream, true, block(send, count, type, rank), count, type, rank);
    if (result == ncclSuccess)
      result = add(comm, stream, false, block(receive, count, type, rank), count, type, rank);
  }
  return group_end_call(result);
}

ncclResult_t ncclGather(const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  ncclResult_t result = group_begin_call(comm);
  if (result != ncclSuccess)
    return result;
  if (count > 0)
    result = add(comm, stream, true, send, count, type, root);
  for (int rank = 0; count > 0 && comm->rank == root && rank < comm->ranks && result == ncclSuccess; rank++)
    result = add(comm, stream, false, block(receive, count, type, rank), count, type, rank);
  return group_end_call(result);
}

ncclResult_t ncclScatter(const void *send, void *receive, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  ncclResult_t result = group_begin_call(comm);
  if (result != ncclSuccess)
    return result;
  for (int rank = 0; count > 0 && comm->rank == root && rank < comm->ranks && result == ncclSuccess; rank++)
    result = add(comm, stream, true, block(send, count, type, rank), count, type, rank);
  if (count > 0 && result == ncclSuccess)
    result = add(comm, stream, false, receive, count, type, root);
  return group_end_call(result);
}
