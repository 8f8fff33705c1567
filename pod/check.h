/* Tests of single parts: see check.c. */
#ifndef SLURMCKPT_CHECK_H
#define SLURMCKPT_CHECK_H

#include <stdbool.h>

/* Says where it does not hold, and the program fails in the end. */
#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)
void check(bool holds, const char *condition, const char *file, int line);

/* ---- check_streams.c ---- */

void check_held(void);
void check_relays(void);
void check_relay_without_reader(void);
void check_forward(void);

#endif
