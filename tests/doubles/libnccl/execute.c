/* Kernels: what they do to the data while they run. Every one waits until its peers run theirs. */
#include <string.h>
#include <time.h>

#include "device.h"
#include "profiler.h"
#include "reduce.h"
#include "world.h"

static size_t smaller(size_t left, size_t right) { return left < right ? left : right; }

/* One round: who gives puts a chunk where all see it; who takes gets all of them. False: aborted. */
struct round {
  const char *give; /* NULL: gives nothing */
  char *take;       /* NULL: takes nothing */
  size_t stride;    /* gathered: where the next rank's goes; 0: reduced into one */
  int only;         /* the one that gives, or -1 */
  size_t bytes;
};

static void take(const struct ncclComm *comm, const struct collective *collective, const struct round *round, size_t at, size_t size) {
  struct world *world = comm->world;
  if (round->only >= 0) {
    memcpy(round->take + at, world->chunks[round->only], size);
  } else if (round->stride > 0) {
    for (int rank = 0; rank < comm->ranks; rank++)
      memcpy(round->take + (size_t)rank * round->stride + at, world->chunks[rank], size);
  } else {
    size_t elements = size / type_size(collective->type);
    memcpy(round->take + at, world->chunks[0], size);
    for (int rank = 1; rank < comm->ranks; rank++)
      reduce(round->take + at, world->chunks[rank], elements, collective->type, collective->op);
    if (collective->op == ncclAvg)
      reduce_average(round->take + at, elements, collective->type, comm->ranks);
  }
}

static bool exchange(const struct ncclComm *comm, const struct collective *collective, const struct round *round) {
  struct world *world = comm->world;
  bool going = true;
  for (size_t at = 0; going && at < round->bytes; at += WORLD_CHUNK) {
    size_t size = smaller(round->bytes - at, WORLD_CHUNK);
    if (round->give != NULL)
      memcpy(world->chunks[comm->rank], round->give + at, size);
    going = barrier_wait(&world->device, world->ranks, &comm->aborted);
    if (going && round->take != NULL)
      take(comm, collective, round, at, size);
    going = going && barrier_wait(&world->device, world->ranks, &comm->aborted);
  }
  return going;
}

static void execute_collective(const struct ncclComm *comm, const struct collective *collective) {
  size_t bytes = collective->count * type_size(collective->type);
  bool is_root = comm->rank == collective->root;
  struct round round = {collective->send, collective->receive, 0, -1, bytes};
  switch (collective->kind) {
  case ALL_REDUCE:
    break;
  case REDUCE:
    round.take = is_root ? collective->receive : NULL;
    break;
  case BROADCAST:
    round.give = is_root ? collective->send : NULL;
    round.only = collective->root;
    break;
  case ALL_GATHER:
    round.stride = bytes;
    break;
  case REDUCE_SCATTER:
    for (int target = 0; target < comm->ranks; target++) {
      round.give = collective->send + (size_t)target * bytes;
      round.take = target == comm->rank ? collective->receive : NULL;
      if (!exchange(comm, collective, &round))
        break;
    }
    return;
  }
  exchange(comm, collective, &round);
}

/* The first send, or receive, with this peer that is not done: the order between two ranks is kept. */
static bool is_next(const struct kernel *kernel, size_t index) {
  for (size_t i = 0; i < index; i++) {
    const struct transfer *before = &kernel->transfers[i];
    if (!before->done && before->sends == kernel->transfers[index].sends && before->peer == kernel->transfers[index].peer)
      return false;
  }
  return true;
}

/* Returns whether anything moved. An empty message is one chunk of no bytes. */
static bool advance_send(const struct ncclComm *comm, struct transfer *transfer) {
  struct mailbox *box = &comm->world->mailboxes[comm->rank][transfer->peer];
  if (atomic_load(&box->full))
    return false;
  if (transfer->in_flight && transfer->moved == transfer->bytes) {
    transfer->done = true;
  } else {
    box->bytes = (uint32_t)smaller(transfer->bytes - transfer->moved, WORLD_CHUNK);
    memcpy(box->data, transfer->buffer + transfer->moved, box->bytes);
    transfer->moved += box->bytes;
    transfer->in_flight = true;
    atomic_store(&box->full, 1);
  }
  return true;
}

static bool advance_receive(const struct ncclComm *comm, struct transfer *transfer) {
  struct mailbox *box = &comm->world->mailboxes[transfer->peer][comm->rank];
  if (!atomic_load(&box->full))
    return false;
  memcpy(transfer->buffer + transfer->moved, box->data, smaller(box->bytes, transfer->bytes - transfer->moved));
  transfer->moved += smaller(box->bytes, transfer->bytes - transfer->moved);
  transfer->done = transfer->moved == transfer->bytes;
  atomic_store(&box->full, 0);
  return true;
}

static void execute_transfers(const struct ncclComm *comm, struct kernel *kernel) {
  static const struct timespec moment = {0, 50000};
  size_t left = kernel->transfer_count;
  while (left > 0 && !atomic_load(&comm->aborted)) {
    bool moved = false;
    left = 0;
    for (size_t i = 0; i < kernel->transfer_count; i++) {
      struct transfer *transfer = &kernel->transfers[i];
      if (!transfer->done && is_next(kernel, i))
        moved |= transfer->sends ? advance_send(comm, transfer) : advance_receive(comm, transfer);
      left += !transfer->done;
    }
    if (left > 0 && !moved)
      nanosleep(&moment, NULL);
  }
}

void kernel_execute(struct kernel *kernel) {
  if (kernel->late_events)
    profiler_tasks(kernel);
  if (kernel->kind == KERNEL_COLLECTIVE)
    execute_collective(kernel->comm, &kernel->collective);
  else
    execute_transfers(kernel->comm, kernel);
}
