/* The gate's shared memory: one file per pod, of fixed size, in the /dev/shm of the job. It is made by the coordinator, mapped by every
 * rank, and saved and restored with the checkpoint. src/slurmckpt/capture/gate/layout.py reads the same; a test holds the two together.
 *
 * No lock lies in it: every word has one writer (or is changed by one atomic instruction), so that a rank may die anywhere. It is the
 * user's memory: whoever reads it takes nothing in it for granted. The coordinator uses pread and pwrite, as a mapping of a file that its
 * owner cuts off kills the reader. So it can wake nobody, and those who are held look by themselves (GATE_POLL_MS).
 */
#ifndef SLURMCKPT_GATE_LAYOUT_H
#define SLURMCKPT_GATE_LAYOUT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define GATE_MAGIC UINT64_C(0x657461672d6d6c73) /* "slm-gate", little endian */
#define GATE_VERSION 1u
#define GATE_MEMBERS 1024u
#define GATE_PAIRS 8192u

#define GATE_POLL_MS 2
/* For how long a gate stays closed without a sign of life from the coordinator: what is allowed, and what is taken for nonsense. */
#define GATE_LEASE_MIN_MS 100u
#define GATE_LEASE_MAX_MS 600000u

enum gate_state { GATE_FREE = 0, GATE_JOINING = 1, GATE_PRESENT = 2, GATE_LEFT = 3 };

/* What the gate says of itself (header.notes), bits. */
enum gate_note {
  GATE_NOTE_FULL = 1,       /* a communicator or a pair of ranks found no place: nothing is known of it */
  GATE_NOTE_CHAIN_LOST = 2, /* the user's profiler plugin has neither v5 nor v6, or could not be loaded */
};

/* A communicator as one rank sees it. Only this rank writes, but for granted. */
struct gate_member {
  _Atomic uint64_t owner; /* pid in the pod << 8 | enum gate_state */
  uint64_t communicator;  /* NCCL's hash of it, the same on all ranks */
  uint32_t ranks;
  uint32_t rank;
  _Atomic uint32_t birth;  /* differs for every use of this place, so that pairs of an earlier one are told apart */
  _Atomic uint32_t thread; /* the thread that entered an operation of it last */
  _Atomic uint32_t held;   /* threads that are held in it */
  _Atomic uint32_t granted; /* by the coordinator: a thread that is held may go on once for each new value */
  _Atomic uint32_t taken;   /* the last value of granted that was used */
  _Atomic uint32_t captured; /* operations that were captured into a graph; its replays cannot be seen */
  _Atomic uint32_t function; /* of the last operation: index into the names of functions.c */
  _Atomic uint32_t deferred; /* sends and receives whose peers are not known yet */
  _Atomic uint64_t entries;  /* groups entered; a thread that is held has not entered */
  _Atomic uint64_t exits;    /* groups left, that is, enqueued */
  _Atomic uint64_t collectives; /* enqueued, or about to be, between entry and exit */
  _Atomic uint64_t transfers;   /* calls of send and receive */
  _Atomic uint64_t elements;    /* of the last operation */
  uint64_t reserved[4];
};

/* A pair that is just being filled in. */
#define GATE_PAIR_FILLING UINT64_C(0x80000000)

/* What one member has exchanged with one peer. */
struct gate_pair {
  _Atomic uint64_t owner; /* birth << 32 | index of the member + 1; 0: free. Of another birth than the member's: free, too */
  _Atomic uint32_t peer;
  uint32_t reserved;
  _Atomic uint64_t sent;
  _Atomic uint64_t received;
};

struct gate_header {
  uint64_t magic;
  uint32_t version;
  uint32_t members;
  uint32_t pairs;
  uint32_t reserved0;
  /* By the coordinator. */
  _Atomic uint32_t closed; /* 0: open. The only word that is read without a request */
  _Atomic uint32_t epoch;  /* number of the request */
  _Atomic uint32_t beat;   /* changes while the coordinator lives */
  _Atomic uint32_t lease_ms;
  _Atomic uint32_t wide; /* not 0: a thread goes on when any communicator of its process lags, not only those it uses itself */
  uint32_t reserved1[5];
  /* By the ranks. */
  _Atomic uint32_t turn;    /* a futex: changes when somebody who is held may have to go on */
  _Atomic uint32_t expired; /* the epoch that was opened because its coordinator gave no sign of life */
  _Atomic uint32_t births;
  _Atomic uint32_t members_used; /* places that were ever used: nobody looks behind them */
  _Atomic uint32_t pairs_used;
  _Atomic uint32_t notes;
  uint32_t reserved2[10];
};

struct gate_region {
  struct gate_header header;
  struct gate_member members[GATE_MEMBERS];
  struct gate_pair pairs[GATE_PAIRS];
};

_Static_assert(sizeof(struct gate_header) == 128, "the layout is fixed");
_Static_assert(sizeof(struct gate_member) == 128, "the layout is fixed");
_Static_assert(sizeof(struct gate_pair) == 32, "the layout is fixed");

#endif
