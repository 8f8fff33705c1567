/* Counting operations. Without a request this is all the gate does, so it does little. */
#include "gate.h"

static void note_last(struct gate_own *own, const char *function, uint64_t elements) {
  struct gate_member *shared = own->shared;
  /* NCCL's names are constants: the same address is the same name. */
  if (own->function != function) {
    own->function_code = gate_function_code(function);
    own->function = function;
  }
  atomic_store_explicit(&shared->function, own->function_code, memory_order_relaxed);
  atomic_store_explicit(&shared->elements, elements, memory_order_relaxed);
}

/* A communicator is used by one thread at a time (NCCL's rule): a load and a store are enough. */
static void count_one(_Atomic uint64_t *counter) {
  atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1, memory_order_release);
}

/* Whoever has passed a closed gate raises the mark for those who are held. */
static void tell(struct gate *gate) {
  if (atomic_load_explicit(&gate->region->header.closed, memory_order_relaxed))
    gate_turn(gate);
}

void gate_collective(struct gate *gate, struct gate_own *own, const char *function, uint64_t elements) {
  note_last(own, function, elements);
  count_one(&own->shared->collectives);
  tell(gate);
}

void gate_transfer(struct gate *gate, struct gate_group *group, struct gate_own *own, const char *function, uint64_t elements) {
  note_last(own, function, elements);
  atomic_fetch_add(&own->shared->deferred, 1);
  count_one(&own->shared->transfers);
  if (own->called++ == 0) {
    own->next_in_group = group->transfers;
    group->transfers = own;
  }
  tell(gate);
}

void gate_captured(struct gate_own *own) { atomic_fetch_add_explicit(&own->shared->captured, 1, memory_order_relaxed); }
