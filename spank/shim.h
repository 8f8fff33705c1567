/* The task shim's binary, held by a descriptor so that a task in another root directory can still execute it. */
#ifndef SLURMCKPT_SHIM_H
#define SLURMCKPT_SHIM_H

#include <stddef.h>

enum { SHIM_LIBEXEC_MAX = 3072, SHIM_PATH_MAX = 32 };

/*
 * Opens LIBEXEC/shim, close-on-exec: the kernel has it open before it closes it. Refuses anything but an ELF file of
 * root's that everybody may execute and nobody else may write. Returns the descriptor, or -1 with the reason in why.
 */
int shim_open(const char *libexec, char *why, size_t size);

/* Writes "/proc/self/fd/N" and tests that the calling user could execute it now. Returns 0, or -1 with the reason. */
int shim_path(int fd, char path[SHIM_PATH_MAX], char *why, size_t size);

#endif
