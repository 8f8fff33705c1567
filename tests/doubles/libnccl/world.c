/* The file in which ranks meet. */
#include "world.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct world *world_open(struct ncclComm *comm) {
  struct world *world = NULL;
  void *mapped = MAP_FAILED;
  const char *directory = getenv("NCCL_DOUBLE_WORLDS");
  int length = snprintf(comm->path, sizeof(comm->path), "%s/nccl-double-%016llx", directory != NULL ? directory : "/dev/shm",
                        (unsigned long long)comm->hash);
  int file = length < (int)sizeof(comm->path) ? open(comm->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (file < 0 || ftruncate(file, sizeof(struct world)) < 0)
    goto out;
  mapped = mmap(NULL, sizeof(struct world), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (mapped == MAP_FAILED)
    goto out;
  world = mapped;
  world->ranks = (uint32_t)comm->ranks;
out:
  if (file >= 0)
    close(file);
  return world;
}

void world_close(struct ncclComm *comm) {
  if (atomic_fetch_add(&comm->world->left, 1) + 1 == (uint32_t)comm->ranks)
    unlink(comm->path);
  munmap(comm->world, sizeof(struct world));
}

bool barrier_wait(struct barrier *barrier, uint32_t ranks, const _Atomic bool *aborted) {
  static const struct timespec moment = {0, 20000000};
  uint32_t turn = atomic_load(&barrier->turn);
  if (atomic_fetch_add(&barrier->arrived, 1) + 1 == ranks) {
    atomic_store(&barrier->arrived, 0);
    atomic_fetch_add(&barrier->turn, 1);
    syscall(SYS_futex, &barrier->turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
  }
  while (atomic_load(&barrier->turn) == turn && !atomic_load(aborted))
    syscall(SYS_futex, &barrier->turn, FUTEX_WAIT, turn, &moment, NULL, 0);
  return !atomic_load(aborted);
}
