/* The functions of the CUDA driver that the probe needs, resolved when it runs. Types and names as in NVIDIA's cuda.h. */
#ifndef GPU_DRIVER_H
#define GPU_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned long long device_pointer;

struct driver {
	int (*init)(unsigned flags);
	int (*device_get)(int *device, int ordinal);
	int (*device_name)(char *name, int size, int device);
	int (*context_retain)(uintptr_t *context, int device);
	int (*context_set)(uintptr_t context);
	int (*allocate)(device_pointer *pointer, size_t size);
	int (*copy_in)(device_pointer to, const void *from, size_t size);
	int (*copy_out)(void *to, device_pointer from, size_t size);
	int (*module_load)(uintptr_t *module, const void *image);
	int (*module_function)(uintptr_t *function, uintptr_t module, const char *name);
	int (*launch)(uintptr_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned bytes,
		      uintptr_t stream, void **arguments, void **extra);
	int (*synchronize)(void);
};

/* Load libcuda.so.1 and fill in all of it; says "error NAME 0" on stdout and returns false when something is missing. */
bool driver_load(struct driver *driver);

#endif
