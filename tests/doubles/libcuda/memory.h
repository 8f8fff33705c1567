/* DOUBLE (simulated device): device memory. */
#ifndef SIMULATED_MEMORY_H
#define SIMULATED_MEMORY_H

#include <stddef.h>
#include <stdint.h>

int memory_allocate(int device, size_t size, uint64_t *pointer);
int memory_free(uint64_t pointer);
int memory_write(uint64_t pointer, const void *from, size_t size);
int memory_read(uint64_t pointer, void *to, size_t size);

/* Bytes of one device, in this process. */
uint64_t memory_used(int device);

/* Out of the devices into this process and back; nobody else may be in any of these functions. */
int memory_take_out(void);
int memory_put_back(void);

/* Open what a process that holds devices has open, and close it. */
void memory_hold_devices(void);
void memory_drop_devices(void);

#endif
