/* Counters of sends and receives, by pair of ranks. */
#include <stdlib.h>

#include "gate.h"

/* Returns the index of a new pair + 1, or 0 when there is none. The caller has the mutex. */
static uint32_t claim(struct gate *gate, const struct gate_own *own, uint32_t peer) {
  struct gate_region *region = gate->region;
  const uint64_t claimed = (uint64_t)own->birth << 32 | (own->index + 1);
  const uint64_t filling = claimed | GATE_PAIR_FILLING;
  for (uint32_t i = 0; i < GATE_PAIRS; i++) {
    struct gate_pair *pair = &region->pairs[i];
    uint64_t owner = atomic_load(&pair->owner);
    if (gate_member_of(region, owner & ~GATE_PAIR_FILLING) != NULL)
      continue;
    if (!atomic_compare_exchange_strong(&pair->owner, &owner, filling))
      continue;
    atomic_store(&pair->sent, 0);
    atomic_store(&pair->received, 0);
    atomic_store(&pair->peer, peer);
    atomic_store(&pair->owner, claimed);
    uint32_t seen = atomic_load(&region->header.pairs_used);
    while (seen < i + 1 && !atomic_compare_exchange_weak(&region->header.pairs_used, &seen, i + 1))
      ;
    return i + 1;
  }
  return 0;
}

static struct gate_pair *pair_with(struct gate *gate, struct gate_own *own, uint32_t peer) {
  uint32_t place = 0;
  pthread_mutex_lock(&gate->mutex);
  if (own->pairs == NULL)
    own->pairs = calloc(own->ranks, sizeof(*own->pairs));
  if (own->pairs != NULL) {
    place = own->pairs[peer];
    if (place == 0)
      place = own->pairs[peer] = claim(gate, own, peer);
  }
  pthread_mutex_unlock(&gate->mutex);
  if (place == 0)
    atomic_fetch_or(&gate->region->header.notes, GATE_NOTE_FULL);
  return place != 0 ? &gate->region->pairs[place - 1] : NULL;
}

static void one_less(_Atomic uint32_t *counter) {
  uint32_t left = atomic_load(counter);
  while (left > 0 && !atomic_compare_exchange_weak(counter, &left, left - 1))
    ;
}

void gate_peer(struct gate *gate, struct gate_own *own, enum gate_direction direction, uint32_t peer, bool in_group) {
  if (in_group)
    own->known++;
  /* What a rank sends to itself is in one group with its receive: never half done. */
  struct gate_pair *pair = peer != own->rank && peer < own->ranks ? pair_with(gate, own, peer) : NULL;
  if (pair != NULL)
    atomic_fetch_add(direction == GATE_SEND ? &pair->sent : &pair->received, 1);
  /* After it is counted: in between, it is known as one whose peer is not known. */
  one_less(&own->shared->deferred);
  if (atomic_load_explicit(&gate->region->header.closed, memory_order_relaxed))
    gate_turn(gate);
}
