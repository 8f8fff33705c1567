/* Communicators: their beginning and end. Blocking; the ranks meet on the CPU. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device.h"
#include "profiler.h"
#include "world.h"

static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t size) {
  for (size_t i = 0; i < size; i++)
    hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
  return hash;
}

ncclResult_t ncclGetVersion(int *version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
  static const char *const texts[] = {"no error",         "unhandled cuda error",  "unhandled system error", "internal error",
                                      "invalid argument", "invalid usage",         "remote process exited",  "NCCL operation in progress"};
  return (size_t)result < sizeof(texts) / sizeof(texts[0]) ? texts[result] : "unknown result code";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
  ssize_t got = file >= 0 ? read(file, id->internal, sizeof(id->internal)) : -1;
  if (file >= 0)
    close(file);
  return got == (ssize_t)sizeof(id->internal) ? ncclSuccess : ncclSystemError;
}

/* As NCCL: the ranks meet; the profiler hears of it; they meet once more before anything can be enqueued. */
static ncclResult_t begin(ncclComm_t *made, uint64_t hash, int ranks, int rank) {
  ncclResult_t result = ncclSystemError;
  struct ncclComm *comm = calloc(1, sizeof(*comm));
  *made = NULL;
  if (comm == NULL)
    goto out;
  comm->hash = hash;
  comm->ranks = ranks;
  comm->rank = rank;
  comm->world = world_open(comm);
  if (comm->world == NULL)
    goto out;
  barrier_wait(&comm->world->host, (uint32_t)ranks, &comm->aborted);
  profiler_init(comm);
  barrier_wait(&comm->world->host, (uint32_t)ranks, &comm->aborted);
  *made = comm;
  result = ncclSuccess;
out:
  if (result != ncclSuccess)
    free(comm);
  return result;
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank) {
  if (ranks < 1 || ranks > WORLD_RANKS || rank < 0 || rank >= ranks)
    return ncclInvalidArgument;
  return begin(comm, hash_bytes(UINT64_C(0xcbf29ce484222325), id.internal, sizeof(id.internal)), ranks, rank);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
  (void)config;
  return ncclCommInitRank(comm, ranks, id, rank);
}

struct one_of_all {
  pthread_t thread;
  ncclComm_t *comm;
  ncclUniqueId id;
  int ranks;
  int rank;
  ncclResult_t result;
};

static void *init_one(void *argument) {
  struct one_of_all *one = argument;
  one->result = ncclCommInitRank(one->comm, one->ranks, one->id, one->rank);
  return NULL;
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int devices, const int *list) {
  struct one_of_all all[WORLD_RANKS];
  ncclResult_t result = ncclSuccess;
  ncclUniqueId id;
  (void)list;
  if (devices < 1 || devices > WORLD_RANKS || ncclGetUniqueId(&id) != ncclSuccess)
    return ncclInvalidArgument;
  for (int i = 0; i < devices; i++) {
    all[i] = (struct one_of_all){.comm = &comms[i], .id = id, .ranks = devices, .rank = i};
    pthread_create(&all[i].thread, NULL, init_one, &all[i]);
  }
  for (int i = 0; i < devices; i++) {
    pthread_join(all[i].thread, NULL);
    if (all[i].result != ncclSuccess)
      result = all[i].result;
  }
  return result;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *made, ncclConfig_t *config) {
  struct world *world = comm->world;
  int ranks = 0, rank = 0;
  (void)config;
  *made = NULL;
  world->splits[comm->rank].color = color;
  world->splits[comm->rank].key = key;
  if (!barrier_wait(&world->host, world->ranks, &comm->aborted))
    return ncclInternalError;
  for (int other = 0; other < comm->ranks; other++) {
    if (world->splits[other].color != color)
      continue;
    ranks++;
    rank += world->splits[other].key < key || (world->splits[other].key == key && other < comm->rank);
  }
  /* Before anybody may write there again. */
  if (!barrier_wait(&world->host, world->ranks, &comm->aborted))
    return ncclInternalError;
  unsigned number = ++comm->splits;
  if (color == NCCL_SPLIT_NOCOLOR)
    return ncclSuccess;
  uint64_t hash = hash_bytes(hash_bytes(comm->hash, &number, sizeof(number)), &color, sizeof(color));
  return begin(made, hash, ranks, rank);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (comm == NULL)
    return ncclInvalidArgument;
  device_drain(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == NULL)
    return ncclSuccess;
  device_drain(comm);
  profiler_finalize(comm);
  world_close(comm);
  free(comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == NULL)
    return ncclSuccess;
  atomic_store(&comm->aborted, true);
  return ncclCommDestroy(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error) {
  if (comm == NULL)
    return ncclInvalidArgument;
  *error = atomic_load(&comm->aborted) ? ncclRemoteError : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(ncclComm_t comm, int *count) {
  *count = comm->ranks;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int *rank) {
  *rank = comm->rank;
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int *device) {
  *device = comm->rank;
  return ncclSuccess;
}
