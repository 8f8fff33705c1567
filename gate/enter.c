/* The way through the gate.
 *
 * entries is raised before anything of the gate is looked at, closed is written before the coordinator reads entries: one of the two sees
 * the other. A thread that is held takes its entry back, so that entries equals exits exactly when nobody is between them.
 */
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "gate.h"

void gate_turn(struct gate *gate) {
  _Atomic uint32_t *turn = &gate->region->header.turn;
  atomic_fetch_add(turn, 1);
  syscall(SYS_futex, turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* thread 0: it is no operation but the initialization of the communicator, which NCCL has its own threads for. */
#define JOINING 0u

/* Whether a thread may go through now, closed or not; without using up what was granted. */
static bool may_pass(struct gate *gate, const struct gate_own *own, uint32_t thread) {
  const struct gate_header *header = &gate->region->header;
  return !gate_is_closed(header) || atomic_load(&own->shared->granted) != atomic_load(&own->shared->taken) ||
         (thread == JOINING && gate_lags_in_joining(gate, own)) ||
         gate_lags(gate, thread, thread == JOINING || atomic_load(&header->wide) != 0);
}

/* In, and out again when it is held. */
static bool go_in(struct gate *gate, struct gate_own *own, uint32_t thread) {
  struct gate_member *shared = own->shared;
  atomic_fetch_add(&shared->entries, 1);
  if (atomic_load(&gate->region->header.closed) == 0)
    return true;
  bool passes = may_pass(gate, own, thread);
  if (passes)
    atomic_store(&shared->taken, atomic_load(&shared->granted));
  else
    atomic_fetch_add(&shared->exits, 1);
  return passes;
}

static bool first_try(struct gate *gate, struct gate_own *own, uint32_t thread) {
  bool passes = go_in(gate, own, thread);
  if (!passes)
    atomic_fetch_add(&own->shared->held, 1);
  return passes;
}

/* First from outside: whoever waits must not come and go in the coordinator's eyes. */
static bool next_try(struct gate *gate, struct gate_own *own, uint32_t thread) {
  bool passes = may_pass(gate, own, thread) && go_in(gate, own, thread);
  if (passes)
    atomic_fetch_sub(&own->shared->held, 1);
  return passes;
}

bool gate_try(struct gate *gate, struct gate_group *group, struct gate_own *own, uint32_t thread) {
  _Atomic uint32_t *user = &own->shared->thread;
  if (atomic_load_explicit(user, memory_order_relaxed) != thread)
    atomic_store_explicit(user, thread, memory_order_relaxed);
  bool passes = first_try(gate, own, thread);
  if (passes)
    group->entered = own;
  return passes;
}

bool gate_retry(struct gate *gate, struct gate_group *group, struct gate_own *own, uint32_t thread) {
  bool passes = next_try(gate, own, thread);
  if (passes)
    group->entered = own;
  return passes;
}

/* From now on others have to follow. */
static bool joined(struct gate *gate, struct gate_own *own, bool passes) {
  if (passes) {
    atomic_store(&own->shared->owner, (uint64_t)gate->pid << 8 | GATE_PRESENT);
    atomic_fetch_add(&own->shared->exits, 1);
    gate_turn(gate);
  }
  return passes;
}

bool gate_join_try(struct gate *gate, struct gate_own *own) { return joined(gate, own, first_try(gate, own, JOINING)); }

bool gate_join_retry(struct gate *gate, struct gate_own *own) { return joined(gate, own, next_try(gate, own, JOINING)); }

static uint64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* The coordinator's last sign of life, and when it was seen: by this process's clock, as the two may have different ones (a time
 * namespace after a restore). */
struct sign {
  uint32_t epoch;
  uint32_t beat;
  uint64_t seen_ms;
};

static struct sign look(const struct gate_header *header) {
  struct sign sign = {atomic_load(&header->epoch), atomic_load(&header->beat), now_ms()};
  return sign;
}

/* A gate whose coordinator is gone opens by itself. */
static void expire(struct gate_header *header, struct sign *last) {
  struct sign sign = look(header);
  uint32_t lease = atomic_load(&header->lease_ms);
  lease = lease < GATE_LEASE_MIN_MS ? GATE_LEASE_MIN_MS : lease > GATE_LEASE_MAX_MS ? GATE_LEASE_MAX_MS : lease;
  if (sign.epoch != last->epoch || sign.beat != last->beat)
    *last = sign;
  else if (sign.seen_ms - last->seen_ms > lease)
    atomic_store(&header->expired, sign.epoch);
}

/* Waits for a turn; the sign of life is looked at meanwhile. */
static uint32_t wait_turn(struct gate_header *header, uint32_t turn, struct sign *last) {
  static const struct timespec poll = {0, GATE_POLL_MS * 1000000L};
  expire(header, last);
  syscall(SYS_futex, &header->turn, FUTEX_WAIT, turn, &poll, NULL, 0);
  return atomic_load(&header->turn);
}

void gate_enter(struct gate *gate, struct gate_group *group, struct gate_own *own, uint32_t thread) {
  struct gate_header *header = &gate->region->header;
  if (!gate_try(gate, group, own, thread)) {
    struct sign last = look(header);
    uint32_t turn = atomic_load(&header->turn);
    while (!gate_retry(gate, group, own, thread))
      turn = wait_turn(header, turn, &last);
  }
}

void gate_admit(struct gate *gate, struct gate_own *own) {
  struct gate_header *header = &gate->region->header;
  if (!gate_join_try(gate, own)) {
    struct sign last = look(header);
    uint32_t turn = atomic_load(&header->turn);
    while (!gate_join_retry(gate, own))
      turn = wait_turn(header, turn, &last);
  }
}

/* Sends to itself in place are dropped by NCCL, and their peers never become known. When none has become known, they still will: NCCL
 * then starts them from a callback of the driver. */
static void forget_dropped(struct gate_own *own) {
  if (own->known > 0 && own->known < own->called) {
    uint32_t dropped = own->called - own->known, left = atomic_load(&own->shared->deferred);
    while (!atomic_compare_exchange_weak(&own->shared->deferred, &left, left > dropped ? left - dropped : 0))
      ;
  }
  own->called = 0;
  own->known = 0;
}

void gate_exit(struct gate_group *group) {
  struct gate_own *own = group->transfers;
  while (own != NULL) {
    struct gate_own *next = own->next_in_group;
    own->next_in_group = NULL;
    forget_dropped(own);
    own = next;
  }
  group->transfers = NULL;
  if (group->entered != NULL)
    atomic_fetch_add(&group->entered->shared->exits, 1);
  group->entered = NULL;
}
