/* Where the ranks of one communicator meet: a file in /dev/shm, or in the directory that NCCL_DOUBLE_WORLDS names. It stays when a rank dies. */
#ifndef NCCL_DOUBLE_WORLD_H
#define NCCL_DOUBLE_WORLD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "nccl.h"

#define WORLD_CHUNK 16384
#define WORLD_RANKS 16

struct barrier {
  _Atomic uint32_t arrived;
  _Atomic uint32_t turn;
};

/* From one rank to another. */
struct mailbox {
  _Atomic uint32_t full;
  uint32_t bytes;
  char data[WORLD_CHUNK];
};

struct world {
  _Atomic uint32_t left;
  uint32_t ranks;
  struct barrier host;   /* of the calling threads: initialization and split */
  struct barrier device; /* of the kernels */
  struct {
    int color;
    int key;
  } splits[WORLD_RANKS];
  char chunks[WORLD_RANKS][WORLD_CHUNK];
  struct mailbox mailboxes[WORLD_RANKS][WORLD_RANKS]; /* by source and target */
};

struct ncclComm {
  struct world *world;
  char path[256];
  uint64_t hash;
  int ranks;
  int rank;
  unsigned splits;
  unsigned long launched; /* kernels; under the device's mutex */
  unsigned long finished;
  _Atomic bool aborted;
  void *profiler;
};

/* The world of this hash; made by whoever comes first. NULL with errno. */
struct world *world_open(struct ncclComm *comm);
/* The last to leave removes the file. */
void world_close(struct ncclComm *comm);

/* False: aborted. */
bool barrier_wait(struct barrier *barrier, uint32_t ranks, const _Atomic bool *aborted);

#endif
