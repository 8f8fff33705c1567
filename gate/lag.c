/* Whether a thread has to go on although the gate is closed: because others have enqueued operations that wait for it. */
#include "gate.h"

/* The communicators that the thread has to see to: its own, and those that nobody has used yet. */
static bool concerns(const struct gate_own *own, uint32_t thread, bool wide) {
  uint32_t user = atomic_load_explicit(&own->shared->thread, memory_order_relaxed);
  return wide || user == thread || user == 0;
}

/* Another rank has enqueued more collectives, or is just enqueueing sends or receives of which it is not known whom they are for. */
static bool behind(const struct gate_own *own, const struct gate_member *other) {
  return atomic_load(&other->collectives) > atomic_load(&own->shared->collectives) ||
         (atomic_load(&other->deferred) != 0 && atomic_load(&other->entries) != atomic_load(&other->exits));
}

bool gate_lags_in_joining(const struct gate *gate, const struct gate_own *own) {
  const struct gate_region *region = gate->region;
  uint32_t used = gate_used(&region->header.members_used, GATE_MEMBERS);
  for (uint32_t i = 0; i < used; i++) {
    const struct gate_member *other = &region->members[i];
    if (other != own->shared && gate_state_of(atomic_load(&other->owner)) == GATE_PRESENT && other->communicator == own->communicator &&
        other->ranks == own->ranks)
      return true;
  }
  return false;
}

static bool behind_in_collectives(struct gate *gate, uint32_t thread, bool wide) {
  struct gate_region *region = gate->region;
  uint32_t used = gate_used(&region->header.members_used, GATE_MEMBERS);
  for (const struct gate_own *own = gate->owns; own != NULL; own = own->next) {
    if (!concerns(own, thread, wide))
      continue;
    for (uint32_t i = 0; i < used; i++) {
      const struct gate_member *other = &region->members[i];
      enum gate_state state = gate_state_of(atomic_load(&other->owner));
      if ((state == GATE_PRESENT || state == GATE_LEFT) && other != own->shared && other->communicator == own->communicator &&
          other->ranks == own->ranks && behind(own, other))
        return true;
    }
  }
  return false;
}

/* A peer has sent what own has not received, or waits for what own has not sent. */
static bool behind_peer(const struct gate *gate, const struct gate_own *own, uint32_t peer, const struct gate_pair *theirs) {
  uint32_t place = own->pairs != NULL && peer < own->ranks ? own->pairs[peer] : 0;
  const struct gate_pair *ours = place != 0 ? &gate->region->pairs[place - 1] : NULL;
  uint64_t sent = ours != NULL ? atomic_load(&ours->sent) : 0;
  uint64_t received = ours != NULL ? atomic_load(&ours->received) : 0;
  return atomic_load(&theirs->sent) > received || atomic_load(&theirs->received) > sent;
}

static bool behind_in_transfers(struct gate *gate, uint32_t thread, bool wide) {
  struct gate_region *region = gate->region;
  uint32_t used = gate_used(&region->header.pairs_used, GATE_PAIRS);
  for (uint32_t i = 0; i < used; i++) {
    const struct gate_pair *theirs = &region->pairs[i];
    const struct gate_member *other = gate_member_of(region, atomic_load(&theirs->owner));
    if (other == NULL)
      continue;
    for (const struct gate_own *own = gate->owns; own != NULL; own = own->next) {
      if (other->communicator == own->communicator && other->ranks == own->ranks && atomic_load(&theirs->peer) == own->rank &&
          concerns(own, thread, wide) && behind_peer(gate, own, other->rank, theirs))
        return true;
    }
  }
  return false;
}

bool gate_lags(struct gate *gate, uint32_t thread, bool wide) {
  pthread_mutex_lock(&gate->mutex);
  bool lags = behind_in_collectives(gate, thread, wide) || behind_in_transfers(gate, thread, wide);
  pthread_mutex_unlock(&gate->mutex);
  return lags;
}
