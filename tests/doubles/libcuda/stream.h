/* DOUBLE (simulated device): streams, and the kernels that this device knows. */
#ifndef SIMULATED_STREAM_H
#define SIMULATED_STREAM_H

#include <stdbool.h>
#include <stdint.h>

struct stream;

enum kernel { KERNEL_NONE, KERNEL_ADD, KERNEL_WAIT, KERNEL_MEET };

struct work {
	struct work *next;
	enum kernel kernel;
	uint64_t arguments[4];
	void (*host)(void *);
	void *host_data;
};

enum kernel stream_kernel(const char *name);

/* A stream by its handle: 0, 1 and 2 are the default streams of cuda.h. NULL when there is none. */
struct stream *stream_find(uintptr_t handle);
int stream_create(uintptr_t *handle);
int stream_submit(struct stream *stream, const struct work *work);
int stream_synchronize(struct stream *stream);
bool stream_is_idle(struct stream *stream);
int stream_synchronize_all(void);
bool stream_all_idle(void);

#endif
