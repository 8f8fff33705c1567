/* Places in the table of members. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "gate.h"

static void raise_to(_Atomic uint32_t *mark, uint32_t value) {
  uint32_t seen = atomic_load(mark);
  while (seen < value && !atomic_compare_exchange_weak(mark, &seen, value))
    ;
}

static bool is_dead(uint64_t owner) { return kill((pid_t)(owner >> 8), 0) < 0 && errno == ESRCH; }

/* A place: a free one; when there is none, one that its rank has left; when there is none either, one whose rank has died. */
static struct gate_member *claim(struct gate *gate) {
  const uint64_t claimed = (uint64_t)gate->pid << 8 | GATE_JOINING;
  struct gate_region *region = gate->region;
  for (int choice = 0; choice < 3; choice++) {
    for (uint32_t i = 0; i < GATE_MEMBERS; i++) {
      struct gate_member *member = &region->members[i];
      uint64_t owner = atomic_load(&member->owner);
      enum gate_state state = gate_state_of(owner);
      bool usable = choice == 0 ? state == GATE_FREE : choice == 1 ? state == GATE_LEFT : is_dead(owner);
      if (usable && atomic_compare_exchange_strong(&member->owner, &owner, claimed)) {
        raise_to(&region->header.members_used, i + 1);
        return member;
      }
    }
  }
  atomic_fetch_or(&region->header.notes, GATE_NOTE_FULL);
  return NULL;
}

/* A process before this one had the same pid and is dead: what it was in the middle of will not be ended. */
static void bury_predecessor(struct gate *gate) {
  struct gate_region *region = gate->region;
  uint32_t used = gate_used(&region->header.members_used, GATE_MEMBERS);
  for (uint32_t i = 0; i < used; i++) {
    struct gate_member *member = &region->members[i];
    uint64_t owner = atomic_load(&member->owner);
    if (owner >> 8 == gate->pid && gate_state_of(owner) != GATE_FREE && gate_state_of(owner) != GATE_LEFT)
      atomic_store(&member->owner, (uint64_t)gate->pid << 8 | GATE_LEFT);
  }
}

struct gate_own *gate_join(struct gate *gate, uint64_t communicator, uint32_t ranks, uint32_t rank) {
  struct gate_member *member = NULL;
  struct gate_own *own = calloc(1, sizeof(*own));
  if (own == NULL)
    goto out;
  pthread_mutex_lock(&gate->mutex);
  if (!gate->joined)
    bury_predecessor(gate);
  gate->joined = true;
  member = claim(gate);
  if (member == NULL) {
    free(own);
    own = NULL;
    errno = ENOSPC;
    goto unlock;
  }
  own->shared = member;
  own->index = (uint32_t)(member - gate->region->members);
  own->birth = atomic_fetch_add(&gate->region->header.births, 1) + 1;
  own->communicator = communicator;
  own->ranks = ranks;
  own->rank = rank;
  member->communicator = communicator;
  member->ranks = ranks;
  member->rank = rank;
  atomic_store(&member->birth, own->birth);
  atomic_store(&member->thread, 0);
  atomic_store(&member->held, 0);
  atomic_store(&member->taken, atomic_load(&member->granted));
  atomic_store(&member->captured, 0);
  atomic_store(&member->function, 0);
  atomic_store(&member->deferred, 0);
  atomic_store(&member->entries, 0);
  atomic_store(&member->exits, 0);
  atomic_store(&member->collectives, 0);
  atomic_store(&member->transfers, 0);
  atomic_store(&member->elements, 0);
  own->next = gate->owns;
  gate->owns = own;
unlock:
  pthread_mutex_unlock(&gate->mutex);
out:
  return own;
}

void gate_leave(struct gate *gate, struct gate_own *own) {
  pthread_mutex_lock(&gate->mutex);
  for (struct gate_own **link = &gate->owns; *link != NULL; link = &(*link)->next) {
    if (*link == own) {
      *link = own->next;
      break;
    }
  }
  atomic_store(&own->shared->owner, (uint64_t)gate->pid << 8 | GATE_LEFT);
  /* A communicator may be aborted while another thread is held in it. That thread goes on, with memory that is then never freed. */
  bool is_used = atomic_load(&own->shared->held) != 0 || atomic_load(&own->shared->entries) != atomic_load(&own->shared->exits);
  pthread_mutex_unlock(&gate->mutex);
  if (!is_used) {
    free(own->pairs);
    free(own);
  }
}
