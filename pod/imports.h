/* Calls of the main program, as this library would have them: for a plugin that has to change what its host does. */
#ifndef SLURMCKPT_IMPORTS_H
#define SLURMCKPT_IMPORTS_H

#include <stddef.h>
#include <stdint.h>

struct import {
	const char *name;
	uintptr_t function;
};

/* From now on the main program's calls of these names lead to these functions. What it does not call stays as it is. */
void imports_replace(const struct import *all, size_t count);

#endif
