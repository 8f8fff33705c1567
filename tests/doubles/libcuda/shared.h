/*
 * DOUBLE (simulated device): what a process with CUDA state shares with those that call cuCheckpointProcess* on it.
 * It lies in a memfd of that process. Also read by the double of libnvidia-ml.
 */
#ifndef SIMULATED_SHARED_H
#define SIMULATED_SHARED_H

#include <stdint.h>

#define SIMULATED_MEMFD "simulated-cuda"
#define SIMULATED_MAGIC 0x53494d43u
#define SIMULATED_MAX_DEVICES 16
#define SIMULATED_UUID 16

/* cuda.h, CUprocessState */
enum state { STATE_RUNNING = 0, STATE_LOCKED = 1, STATE_CHECKPOINTED = 2, STATE_FAILED = 3 };

enum action { ACTION_NONE, ACTION_LOCK, ACTION_CHECKPOINT, ACTION_RESTORE, ACTION_UNLOCK };

struct gpu_pair {
	uint8_t old[SIMULATED_UUID];
	uint8_t new[SIMULATED_UUID];
};

struct simulated {
	uint32_t magic;
	int32_t pid; /* as the process itself sees it: a memfd that a child inherits is not the child's */
	int32_t thread; /* the restore thread, seen likewise */
	uint32_t state;
	uint64_t device_bytes[SIMULATED_MAX_DEVICES];
	/* One request at a time. caller: tid of who makes it; it may die, and another takes its place. */
	int32_t caller;
	uint32_t asked; /* counts requests; a futex */
	uint32_t answered; /* equals asked when the last one is answered; a futex */
	uint32_t action;
	uint32_t timeout_ms;
	uint32_t pair_count;
	int32_t result;
	struct gpu_pair pairs[SIMULATED_MAX_DEVICES];
};

#endif
