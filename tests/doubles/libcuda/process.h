/* DOUBLE (simulated device): this process as one with CUDA state, and its restore thread. */
#ifndef SIMULATED_PROCESS_H
#define SIMULATED_PROCESS_H

#include "shared.h"

/* cuda.h, CUresult */
enum {
	SUCCESS = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	INVALID_DEVICE = 101,
	OPERATING_SYSTEM = 304,
	INVALID_HANDLE = 400,
	ILLEGAL_STATE = 401,
	NOT_FOUND = 500,
	NOT_READY = 600,
	NOT_SUPPORTED = 801,
	UNKNOWN = 999,
};

/* Give this process CUDA state, once. */
int process_init(void);

/* What this process shares; NULL before process_init(). */
struct simulated *process_shared(void);

/* Every call that touches a device stands between these two; the first waits while the process is locked. */
int process_enter(void);
void process_leave(void);

#endif
