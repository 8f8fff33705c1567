/* The boundary gate of one process: its communicators, and the way through the gate. See docs/gpu.md for the algorithm. */
#ifndef SLURMCKPT_GATE_GATE_H
#define SLURMCKPT_GATE_GATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "layout.h"

/* One communicator of this process. */
struct gate_own {
  struct gate_own *next;
  struct gate_member *shared;
  uint32_t index; /* of shared in the region */
  uint32_t birth;
  uint32_t ranks;
  uint32_t rank;
  uint64_t communicator;
  uint32_t *pairs;      /* by peer: index of its pair + 1; 0: none yet. NULL until the first */
  const char *function; /* the name that stands for function_code, by address */
  uint32_t function_code;
  /* Of the group under way: sends and receives called, those whose peers are known, and the group's next communicator that has some. */
  uint32_t called;
  uint32_t known;
  struct gate_own *next_in_group;
};

/* The group that a thread is in. */
struct gate_group {
  struct gate_own *entered; /* the communicator of its first operation; NULL outside of groups */
  struct gate_own *transfers;
};

struct gate {
  struct gate_region *region;
  pthread_mutex_t mutex; /* of this process only: owns, and their pairs */
  struct gate_own *owns;
  uint32_t pid;
  bool joined; /* at least once */
};

enum gate_direction { GATE_SEND, GATE_RECEIVE };

/* Maps the region at path. pid: of this process. Returns 0, or -1 with errno (EINVAL: it is not a region of this version). */
int gate_attach(struct gate *gate, const char *path, uint32_t pid);
void gate_detach(struct gate *gate);

/* A rank is about to become a member of a communicator. Returns NULL with errno when there is no place or no memory. Then as with groups:
 * gate_join_try is false when it is held from now on, gate_join_retry until it is true; gate_admit does both, and waits. */
struct gate_own *gate_join(struct gate *gate, uint64_t communicator, uint32_t ranks, uint32_t rank);
bool gate_join_try(struct gate *gate, struct gate_own *own);
bool gate_join_retry(struct gate *gate, struct gate_own *own);
void gate_admit(struct gate *gate, struct gate_own *own);
/* It leaves. Its counters stay, as others may have to catch up with them. Frees own. */
void gate_leave(struct gate *gate, struct gate_own *own);

/* A thread is about to begin a group whose first operation is one of own's. gate_try: false when it is held from now on; then gate_retry, until
 * it is true. gate_enter does both, and waits. */
bool gate_try(struct gate *gate, struct gate_group *group, struct gate_own *own, uint32_t thread);
bool gate_retry(struct gate *gate, struct gate_group *group, struct gate_own *own, uint32_t thread);
void gate_enter(struct gate *gate, struct gate_group *group, struct gate_own *own, uint32_t thread);
/* The group is enqueued. */
void gate_exit(struct gate_group *group);

/* An operation of the group, before it is enqueued. function: NCCL's name, a string that stays. */
void gate_collective(struct gate *gate, struct gate_own *own, const char *function, uint64_t elements);
void gate_transfer(struct gate *gate, struct gate_group *group, struct gate_own *own, const char *function, uint64_t elements);
/* The peer of a send or receive has become known: in the group that called it, or later (in_group false). */
void gate_peer(struct gate *gate, struct gate_own *own, enum gate_direction direction, uint32_t peer, bool in_group);
/* An operation was captured into a graph. */
void gate_captured(struct gate_own *own);

/* For the files of this directory. */

/* Whether others have enqueued what this thread, or with wide this process, has not yet. */
bool gate_lags(struct gate *gate, uint32_t thread, bool wide);
/* Whether another rank is a member of own's communicator already. */
bool gate_lags_in_joining(const struct gate *gate, const struct gate_own *own);
/* Lets those who are held look again. */
void gate_turn(struct gate *gate);
uint32_t gate_function_code(const char *name);

static inline enum gate_state gate_state_of(uint64_t owner) { return (enum gate_state)(owner & 0xff); }

static inline bool gate_is_closed(const struct gate_header *header) {
  return atomic_load(&header->closed) != 0 && atomic_load(&header->expired) != atomic_load(&header->epoch);
}

/* How many places of a table may be looked at, whatever the region says. */
static inline uint32_t gate_used(const _Atomic uint32_t *used, uint32_t size) {
  uint32_t value = atomic_load_explicit(used, memory_order_acquire);
  return value < size ? value : size;
}

/* The member a pair belongs to, or NULL when it is free: unused, being filled in, or of an earlier use of the member's place. */
static inline struct gate_member *gate_member_of(struct gate_region *region, uint64_t owner) {
  uint32_t place = (uint32_t)owner;
  struct gate_member *member = place != 0 && place <= GATE_MEMBERS ? &region->members[place - 1] : NULL;
  return member != NULL && atomic_load(&member->birth) == (uint32_t)(owner >> 32) ? member : NULL;
}

#endif
