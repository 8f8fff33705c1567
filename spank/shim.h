/* Our binaries, held by descriptors so that a task in another root directory can still execute them. */
#ifndef SLURMCKPT_SHIM_H
#define SLURMCKPT_SHIM_H

#include <stddef.h>

enum { SHIM_LIBEXEC_MAX = 3072, SHIM_PATH_MAX = 32, PROGRAM_NAME_MAX = 16 };

/*
 * Opens LIBEXEC/NAME, close-on-exec: the kernel has it open before it closes it. Refuses anything but an ELF file of
 * root's that everybody may execute and nobody else may write. Returns the descriptor, or -1 with the reason in why.
 */
int program_open(const char *libexec, const char *name, char *why, size_t size);

/* Writes "/proc/self/fd/N" and tests that the calling user could execute it now. Returns 0, or -1 with the reason. */
int shim_path(int fd, char path[SHIM_PATH_MAX], char *why, size_t size);

#endif
