/*
 * What the programs of tests/cluster/looks.py have in common: they set something up, say "ready", and tell what they hold ("name value" lines)
 * whenever a file look.N appears, until there is a file `stop`.
 */
#ifndef LOOK_H
#define LOOK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static inline void fail(const char *what)
{
	printf("%s failed: %s\n", what, strerror(errno));
	fflush(stdout);
	_exit(2);
}

static inline void look_wait(void)
{
	const struct timespec moment = {.tv_nsec = 20000000};

	nanosleep(&moment, NULL);
}

/* Returns at `stop`. A section of the output is complete with its line "end N". */
static inline void look_loop(void (*tell)(void))
{
	char name[32] = "look.0";

	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	for (int look = 0; access("stop", F_OK); look_wait()) {
		if (access(name, F_OK))
			continue;
		printf("look %d\n", look);
		tell();
		printf("end %d\n", look);
		snprintf(name, sizeof(name), "look.%d", ++look);
	}
	puts("last");
}

#endif
