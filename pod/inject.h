/* System calls that a stopped thread makes for its tracer, which changes nothing else of it. */
#ifndef SLURMCKPT_INJECT_H
#define SLURMCKPT_INJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Makes the call `number` in the thread, which the caller traces and which stands still, with `size` bytes of `data` (of 4096 at most) in its
 * memory, whose address is the argument `place` (0 to 5) instead of that in `arguments`; what the call has made of them is in `data` afterwards.
 * Signals wait meanwhile. *result is the call's, negative for an error. Returns false when it could not be made: the thread is as it was, or
 * cannot be helped. x86-64 only. */
bool inject_call(pid_t tid, long number, const unsigned long arguments[6], int place, void *data, size_t size, long *result);

#endif
